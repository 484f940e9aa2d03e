"""Architectures of sequence models by name; needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from tlp.errors import ModelError

Mixer = Literal["attention", "lstm", "transformer"]
Pool = Literal["positions", "mean", "meanmax"]


@dataclass(frozen=True)
class SequenceConfig:
    """Sizes and choices of a model that reads a sequence of primitives.

    Each primitive goes through an encoder; a mixer lets positions see each other; residual blocks
    follow; a decoder turns the result into a score. The defaults are our TLP.

    Attributes
    ----------
    width
        Of everything between encoder and decoder.
    encoder
        Widths of the encoder's layers before the last, which has ``width``.
    mixer
        ``attention``, ``lstm`` or ``transformer``.
    layers, heads
        Of the mixer; an LSTM has no heads.
    blocks
        Residual blocks after the mixer.
    decoder
        Widths of the decoder's layers before the last, which has 1.
    pool
        ``positions`` decodes every position and sums the scores; ``mean`` and ``meanmax`` (mean and
        maximum side by side) pool positions first and decode once.
    masked
        Whether padding is left out; otherwise it counts as primitives of zeros.
    positions
        Whether a learned vector a position is added.
    norm
        Whether what mixer, blocks and decoder read is normalised (layer norm).
    log2
        Whether numbers are read as ``sign(x) log2(1 + |x|)``; ones and zeros stay. For raw
        encodings.
    """

    width: int = 64
    encoder: tuple[int, ...] = (64,)
    mixer: Mixer = "attention"
    layers: int = 1
    heads: int = 4
    blocks: int = 2
    decoder: tuple[int, ...] = (64,)
    pool: Pool = "meanmax"
    masked: bool = True
    positions: bool = True
    norm: bool = True
    log2: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("mixer", get_args(Mixer)), ("pool", get_args(Pool))):
            if getattr(self, name) not in choices:
                raise ModelError(
                    f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        sizes = (self.width, self.layers, self.heads, *self.encoder, *self.decoder)
        if min(sizes) < 1 or self.blocks < 0:
            raise ModelError(f"sizes of a model must be positive: {self}")
        if self.mixer != "lstm" and self.width % self.heads:
            raise ModelError(
                f"{self.heads} heads do not divide the width {self.width}: choose a divisor"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a checkpoint's header."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SequenceConfig:
        """The config that `to_json` was called on.

        Raises
        ------
        ModelError
            If a field is missing or unknown.
        """
        known = {field.name for field in fields(cls)}
        if set(content) != known:
            differs = sorted(known ^ set(content))
            raise ModelError(f"the architecture's fields {', '.join(differs)} are not understood")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in content.items()
        }
        return cls(**values)


PUBLISHED = SequenceConfig(
    width=256,
    encoder=(64, 128, 256),
    heads=8,
    decoder=(256, 128, 64),
    pool="positions",
    masked=False,
    positions=False,
    norm=False,
    log2=False,
)
"""TLP (Zhai et al., ASPLOS'23, section 4.4), as its authors published it.

Sizes are those of their training script (github zhaiyi000/tlp, ``scripts/tlp_train.py``).
"""

ARCHITECTURES: dict[str, SequenceConfig] = {
    "tlp": SequenceConfig(),
    "tlp-published": PUBLISHED,
    "lstm": replace(PUBLISHED, mixer="lstm", masked=True),
    "transformer": SequenceConfig(mixer="transformer", layers=1, blocks=0),
    "transformer-2": SequenceConfig(mixer="transformer", layers=2, blocks=0),
    "transformer-4": SequenceConfig(mixer="transformer", layers=4, blocks=0),
}


def architecture(name: str, **changes: Any) -> SequenceConfig:
    """The config of a name, with some fields changed.

    Raises
    ------
    ModelError
        If the name or a field is unknown.
    """
    if name not in ARCHITECTURES:
        raise ModelError(f"unknown architecture {name!r}; there are {', '.join(ARCHITECTURES)}")
    known = {field.name for field in fields(SequenceConfig)}
    if wrong := sorted(set(changes) - known):
        raise ModelError(f"unknown fields {', '.join(wrong)}; there are {', '.join(sorted(known))}")
    return replace(ARCHITECTURES[name], **changes)
