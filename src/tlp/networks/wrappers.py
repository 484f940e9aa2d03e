"""Small torch modules around others. Imports torch: import it inside functions only."""

from __future__ import annotations

from typing import Any

import torch


class LastHiddenState(torch.nn.Module):
    """A transformers encoder as a function of token ids alone, [batch, length] int64."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        if hasattr(model, "pooler"):
            model.pooler = None  # its output is not used
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Return the hidden states of the last layer, [batch, length, width]."""
        return self.model(input_ids=input_ids).last_hidden_state
