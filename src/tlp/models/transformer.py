"""A transformer encoder over the primitives of a sequence, in place of attention."""

from __future__ import annotations

import torch
from torch import nn

from tlp.models.config import SequenceConfig


class Transformer(nn.Module):
    """Layers of attention and a feed-forward part of twice the width.

    Vaswani et al., Attention Is All You Need, NeurIPS 2017; normalised before each part where
    the config asks for norms, after it otherwise, as there.
    """

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.width,
                config.heads,
                2 * config.width,
                dropout=0.0,
                batch_first=True,
                norm_first=config.norm,
            )
            for _ in range(config.layers)
        )

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """What depends on one primitive alone: nothing more, ``[..., width]``."""
        return hidden

    def forward(
        self, features: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Mix positions: ``[n, L, width]`` to ``[n, L, width]``."""
        hidden = features if positions is None else features + positions
        padding = None if mask is None else ~mask
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=padding)
        return hidden
