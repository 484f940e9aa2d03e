"""Several processes that train one model together, started by torchrun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class World:
    """One process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process judges, saves and reports."""
        return self.rank == 0

    def sum_gradients(self, model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
        """Sum gradients over all processes in place; returns the sum of the losses."""
        if self.size == 1:
            return loss
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        total = loss.clone()
        dist.all_reduce(total)
        return total

    def share(self, value: Any) -> Any:
        """The leading process's value, in every process."""
        if self.size == 1:
            return value
        said = [value]
        dist.broadcast_object_list(said, src=0)
        return said[0]


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started; a world of one without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
