"""The state of a training run on disk: everything that the next step depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from tlp.errors import CheckpointError, TrainingError
from tlp.models.checkpoint import load_tensors, save_tensors

Weights = dict[str, torch.Tensor]


@dataclass
class Position:
    """How far a run is."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    averaged: int = 0
    best: float | None = None
    best_epoch: int = -1
    stale: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    skipped: int = 0
    done: bool = False
    history: list[dict[str, float | None]] = field(default_factory=list)


def save_state(
    path: Path,
    identity: dict[str, Any],
    position: Position,
    parts: dict[str, Weights],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write a run's state in one step.

    Parameters
    ----------
    identity
        What must be equal for the run to go on: settings, architecture, fingerprints.
    parts
        Named sets of weights.
    """
    tensors = {
        f"{part}/{name}": values.detach().cpu().numpy()
        for part, weights in parts.items()
        for name, values in weights.items()
    }
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer/{number}/{name}"] = value.detach().cpu().numpy()
    save_tensors(path, {"identity": identity, "position": asdict(position)}, tensors)


def load_state(
    path: Path, identity: dict[str, Any], optimizer: torch.optim.Optimizer
) -> tuple[Position, dict[str, Weights]]:
    """Read a run's state and put the optimizer's part back.

    Raises
    ------
    TrainingError
        If it is the state of another run.
    CheckpointError
        If the file is damaged.
    """
    header, arrays = load_tensors(path)
    found = header.get("identity", {})
    differs = [
        f"{name} was {found.get(name)!r} and is {identity.get(name)!r}"
        for name in sorted({*found, *identity})
        if found.get(name) != identity.get(name)
    ]
    if differs:
        raise TrainingError(
            f"{path} is the state of another run: {'; '.join(differs)}. Go on with the same "
            "settings and data, or take another folder"
        )
    known = {one.name for one in fields(Position)}
    if set(header.get("position", {})) != known:
        raise CheckpointError(f"{path} was written by another version of tlp. Take another folder")
    position = Position(**header["position"])
    parts: dict[str, Weights] = {}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, values in arrays.items():
        part, _, rest = name.partition("/")
        tensor = torch.from_numpy(values.copy())
        if part == "optimizer":
            number, _, key = rest.partition("/")
            state.setdefault(int(number), {})[key] = tensor
        else:
            parts.setdefault(part, {})[rest] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return position, parts
