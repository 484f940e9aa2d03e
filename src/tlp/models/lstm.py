"""An LSTM over the primitives of a sequence, in place of attention."""

from __future__ import annotations

import torch
from torch import nn

from tlp.models.config import SequenceConfig


class Lstm(nn.Module):
    """Reads primitives in order, with a residual around all layers.

    Hochreiter and Schmidhuber, Long Short-Term Memory, 1997. Padding comes last and so changes
    no state before it.
    """

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width) if config.norm else nn.Identity()
        self.lstm = nn.LSTM(config.width, config.width, config.layers, batch_first=True)

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """What depends on one primitive alone: nothing more, ``[..., width]``."""
        return hidden

    def forward(
        self, features: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Mix positions: ``[n, L, width]`` to ``[n, L, width]``."""
        hidden = features if positions is None else features + positions
        return hidden + self.lstm(self.norm(hidden))[0]
