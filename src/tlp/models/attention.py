"""Self-attention over the primitives of a sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tlp.models.config import SequenceConfig


class Attention(nn.Module):
    """Layers of multi-head self-attention, each with a residual.

    Queries, keys and values of the first layer depend on one primitive alone: `prepare` computes
    them once for each. Positions are added after the norm, so that their share of the queries is
    a sum that is computed once for all sequences.
    """

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(config.layers))
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(config.layers))
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if config.norm else nn.Identity() for _ in range(config.layers)
        )
        # The first weights are those of torch's own attention, as TLP was published.
        for layer in self.inputs:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for layer in self.outputs:
            nn.init.zeros_(layer.bias)

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """What depends on one primitive alone: ``[..., width]`` to ``[..., 4 width]``."""
        return torch.cat([hidden, self.inputs[0](self.norms[0](hidden))], -1)

    def forward(
        self, features: torch.Tensor, positions: torch.Tensor | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Mix positions: ``[n, L, 4 width]`` to ``[n, L, width]``."""
        width = features.shape[-1] // 4
        hidden, projected = features[..., :width], features[..., width:]
        if positions is not None:
            hidden = hidden + positions
            projected = projected + F.linear(positions, self.inputs[0].weight)
        hidden = hidden + self.outputs[0](self._attend(projected, mask))
        for norm, inputs, outputs in zip(
            self.norms[1:], self.inputs[1:], self.outputs[1:], strict=True
        ):
            hidden = hidden + outputs(self._attend(inputs(norm(hidden)), mask))
        return hidden

    def _attend(self, projected: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        count, length, triple = projected.shape
        parts = projected.view(count, length, 3, self.heads, triple // 3 // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        keys = None if mask is None else mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        return mixed.transpose(1, 2).reshape(count, length, -1)
