"""Sequence models: scores of schedules from their primitives."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from tlp.models.attention import Attention
from tlp.models.config import SequenceConfig
from tlp.models.lstm import Lstm
from tlp.models.transformer import Transformer

_MIXERS: dict[str, Any] = {"attention": Attention, "lstm": Lstm, "transformer": Transformer}


class SequenceModel(nn.Module):
    """Encoder, mixer, residual blocks and decoder (see `SequenceConfig`).

    ``model(table, indices, mask)`` is the table form: what depends on one primitive alone is
    computed once for each row of ``table [d, w]`` and gathered by ``indices [n, L]``.
    ``model.plain(x, mask)`` computes the same from ``x [n, L, w]``. Both return ``[n]``; higher is
    better, and scores compare within a workload only.

    Parameters
    ----------
    features
        Columns of a primitive's row, ``w``.
    length
        Longest sequence, ``L``.
    seed
        Of the first weights; torch's global generator is left alone.
    """

    def __init__(self, config: SequenceConfig, features: int, length: int, seed: int = 0) -> None:
        super().__init__()
        self.config, self.features, self.length = config, features, length
        width = config.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = _layers((features, *config.encoder, width), last=True)
            self.mixer = _MIXERS[config.mixer](config)
            self.blocks = nn.ModuleList(
                nn.Sequential(*_norm(config), nn.Linear(width, width), nn.ReLU())
                for _ in range(config.blocks)
            )
            pooled = 2 * width if config.pool == "meanmax" else width
            self.norm = nn.LayerNorm(pooled) if config.norm else nn.Identity()
            self.decoder = _layers((pooled, *config.decoder, 1), last=False)
            self.positions = (
                nn.Parameter(0.1 * torch.randn(length, width)) if config.positions else None
            )

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """What depends on one primitive alone, ``[..., w]`` to ``[..., f]``."""
        if self.config.log2:
            rows = rows.sign() * torch.log2(1 + rows.abs())
        return self.mixer.prepare(self.encoder(rows))

    def encode_table(self, table: torch.Tensor) -> torch.Tensor:
        """Encode ``table [d, w]``; a last row, of a primitive of zeros, stands for padding."""
        return self.encode(torch.cat([table, table.new_zeros(1, table.shape[-1])]))

    def score_encoded(
        self, encoded: torch.Tensor, indices: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Scores ``[n]`` from what `encode_table` returned; padded indices may hold anything."""
        gathered = indices.masked_fill(~mask, len(encoded) - 1)
        return self._finish(encoded[gathered], mask)

    def forward(
        self, table: torch.Tensor, indices: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Scores ``[n]`` in the table form."""
        return self.score_encoded(self.encode_table(table), indices, mask)

    def plain(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores ``[n]`` of ``x [n, L, w]``, every position computed anew."""
        return self._finish(self.encode(x.masked_fill(~mask[..., None], 0)), mask)

    def _finish(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.config.masked:
            # An empty sequence sees one position of zeros rather than nothing, which is NaN.
            seen = mask.clone()
            seen[:, 0] = True
        else:
            seen = None
        positions = None if self.positions is None else self.positions[: features.shape[1]]
        hidden = self.mixer(features, positions, seen)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        if self.config.pool == "positions":
            scores = self.decoder(self.norm(hidden))[..., 0]
            return (scores if seen is None else scores * seen).sum(-1)
        return self.decoder(self.norm(self._pooled(hidden, seen)))[..., 0]

    def _pooled(self, hidden: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        if seen is None:
            mean = hidden.mean(1)
            filled = hidden
        else:
            weights = seen / seen.sum(-1, keepdim=True)
            mean = (weights.to(hidden.dtype)[:, None, :] @ hidden)[:, 0]
            filled = hidden.masked_fill(~seen[..., None], float("-inf"))
        return mean if self.config.pool == "mean" else torch.cat([mean, filled.amax(1)], -1)


def _norm(config: SequenceConfig) -> tuple[nn.Module, ...]:
    return (nn.LayerNorm(config.width),) if config.norm else ()


def _layers(widths: tuple[int, ...], last: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if asked."""
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(before, after))
        if last or place < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)
