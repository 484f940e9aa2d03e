"""Which task gets the next round: where the network gains most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_BLIND_ROUNDS = 3


@dataclass
class Progress:
    """What the scheduler knows of a task.

    Parameters
    ----------
    weight
        How often the network uses it.
    start
        Latency before tuning, seconds; infinite where a device did not finish it.
    history
        Best latency after each round, seconds; infinite while there is none.
    done
        No programs are left.
    """

    weight: int
    start: float
    history: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def best(self) -> float:
        """Best latency so far, seconds; that before tuning while there is none."""
        found = self.history[-1] if self.history else math.inf
        return found if math.isfinite(found) else self.start


def expected_gain(progress: Progress, window: int = 3, trust_past: float = 0.3) -> float:
    """Network seconds that one more round on a task is expected to save.

    A mixture of what the last rounds gained and of the optimistic guess that the gain so far
    goes on in proportion: ``weight * (a * slope + (1 - a) * best / rounds)``, in the spirit of
    Ansor's task scheduler (OSDI'20, section 6).
    """
    rounds = len(progress.history)
    if progress.done:
        return 0.0
    if rounds == 0:
        return math.inf
    values = [value if math.isfinite(value) else progress.start for value in progress.history]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        # Nothing is known but that all of it is slow or fails: some rounds more, then the others.
        return math.inf if rounds < _BLIND_ROUNDS else 0.0
    rounds = len(values)
    first = max(0, rounds - 1 - window)
    slope = (values[first] - values[-1]) / max(1, rounds - 1 - first)
    return progress.weight * (trust_past * slope + (1 - trust_past) * 0.2 * values[-1] / rounds)


def next_task(tasks: Sequence[Progress]) -> int | None:
    """Index of the task for the next round; None when all are done.

    Each task gets its first round before any gets a second, in the order given.
    """
    open_tasks = [index for index, task in enumerate(tasks) if not task.done]
    if not open_tasks:
        return None
    return max(open_tasks, key=lambda index: expected_gain(tasks[index]))


def network_latency(tasks: Sequence[Progress]) -> float:
    """Sum of weight times best latency over the tasks, seconds."""
    return sum(task.weight * task.best for task in tasks)
