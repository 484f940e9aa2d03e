"""The numbers that a report shows, made from a run's history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp.records.store import Candidate
from tlp.reports.history import History, RoundTime, TaskHistory

Values = npt.NDArray[np.float64]

TOP = 3
"""How many of a round's picks are its predicted top."""


@dataclass(frozen=True)
class Improvement:
    """A moment at which the network's estimated latency fell.

    Parameters
    ----------
    seconds
        Tuning time.
    latency
        Sum of weight times best latency over the tasks, seconds.
    task
        Name of the task that improved; empty at the beginning.
    """

    seconds: float
    latency: float
    task: str = ""


def network_curve(tasks: Sequence[TaskHistory]) -> list[Improvement]:
    """Estimated network latency over tuning time, of the tasks that have a latency.

    A task counts with its unscheduled workload until a verified program is faster. It begins when
    every task has a latency: at once where all unscheduled workloads were timed here.
    """
    known = [task for task in tasks if math.isfinite(min(task.start, task.best))]
    best = {task.key: task.start for task in known}
    weights = {task.key: task.weight for task in known}
    names = {task.key: task.name for task in known}

    def total() -> float:
        return sum(weights[key] * value for key, value in best.items())

    curve = [Improvement(0.0, total())] if known and math.isfinite(total()) else []
    found = [c for task in known for c in task.candidates if c.good]
    for candidate in sorted(found, key=lambda c: c.id or 0):
        if candidate.latency < best[candidate.task]:
            best[candidate.task] = candidate.latency
            if math.isfinite(total()):
                curve.append(Improvement(candidate.elapsed_s, total(), names[candidate.task]))
    return curve


def best_so_far(candidates: Iterable[Candidate]) -> Values:
    """Seconds of the fastest good candidate after each, ``float64 [n]``; infinite at first."""
    return np.minimum.accumulate(
        np.array([c.latency if c.good else math.inf for c in candidates], np.float64)
    )


@dataclass(frozen=True)
class Predicted:
    """Predictions of one task against what was measured.

    Parameters
    ----------
    candidates
        Those with a prediction and a latency.
    scores
        As predicted before the measurement, ``float64 [n]``; higher is better.
    measured
        log2(best / latency), ``float64 [n]``: 0 is the task's best, -1 takes twice its time.
    """

    candidates: tuple[Candidate, ...]
    scores: Values
    measured: Values

    def rounds(self) -> list[npt.NDArray[np.int64]]:
        """Indices of the candidates of each round, rounds in order."""
        numbers = np.array([c.round for c in self.candidates], np.int64)
        return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def predicted(task: TaskHistory) -> Predicted:
    """What was predicted and measured of a task's candidates."""
    pairs = tuple(
        c
        for c in task.candidates
        if c.predicted is not None and c.status.timed and c.latencies and not c.origin
    )
    latencies = np.array([c.latency for c in pairs], np.float64)
    best = min(task.best, latencies.min(initial=math.inf))
    scores = np.array([c.predicted for c in pairs], np.float64)
    return Predicted(pairs, scores, np.log2(best / latencies))


def ranks(values: Values) -> Values:
    """Ranks from 1, equal values sharing their mean, ``float64 [n]``.

    Examples
    --------
    >>> ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Values = (last - (counts - 1) / 2)[group]
    return mean


def rank_correlation(first: Values, second: Values) -> float | None:
    """Spearman's, -1 to 1; None for fewer than three pairs or without any variation."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def round_correlation(pairs: Predicted) -> float | None:
    """Mean of the rank correlations within the rounds; None if no round has one.

    Each round was scored by a model of its own, so scores of different rounds do not compare.
    """
    found = [
        value
        for of_round in pairs.rounds()
        if (value := rank_correlation(pairs.scores[of_round], pairs.measured[of_round])) is not None
    ]
    return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class TopPicks:
    """How often a round's fastest pick was among the predicted best of that round.

    Parameters
    ----------
    hits, rounds
        In so many rounds it was, of so many with a choice.
    chance
        Hits that guessing would be expected to have.
    """

    hits: int
    rounds: int
    chance: float


def top_picks(pairs: Predicted, top: int = TOP) -> TopPicks:
    """Count over the rounds of a task with more than ``top`` picks predicted and timed."""
    rounds = [of_round for of_round in pairs.rounds() if len(of_round) > top]
    hits = sum(int(places(pairs.scores[r])[np.argmax(pairs.measured[r])]) <= top for r in rounds)
    return TopPicks(hits, len(rounds), float(sum(top / len(of_round) for of_round in rounds)))


def places(scores: Values) -> npt.NDArray[np.int64]:
    """Place of each score, 1 for the highest; equal scores share the last of their places.

    Sharing the last counts against the model: a constant score predicts nothing.

    Examples
    --------
    >>> places(np.array([0.5, 0.9, 0.5, 0.1])).tolist()
    [3, 1, 3, 4]
    """
    result: npt.NDArray[np.int64] = (scores[None, :] >= scores[:, None]).sum(axis=1)
    return result


@dataclass(frozen=True)
class Placed:
    """A pick's predicted place in its round, and how fast it was.

    Parameters
    ----------
    place
        1 is the pick that was predicted best.
    speed
        The round's lowest latency over this one's, in (0, 1].
    """

    task: str
    candidate: Candidate
    place: int
    speed: float


def placed_picks(tasks: Iterable[TaskHistory]) -> list[Placed]:
    """All predicted and timed picks of rounds with a choice."""
    found = []
    for task in tasks:
        pairs = predicted(task)
        for of_round in pairs.rounds():
            if len(of_round) < 2:
                continue
            speeds = np.exp2(pairs.measured[of_round] - pairs.measured[of_round].max())
            for index, place, speed in zip(
                of_round, places(pairs.scores[of_round]), speeds, strict=True
            ):
                found.append(Placed(task.name, pairs.candidates[index], int(place), float(speed)))
    return found


@dataclass(frozen=True)
class Failures:
    """Candidates that failed in one way, with the text of one of them."""

    status: str
    cause: str
    count: int
    tasks: tuple[str, ...]
    example: str


def failures(history: History) -> list[Failures]:
    """Failures and refusals by status and cause, most frequent first."""
    groups: dict[tuple[str, str], list[tuple[str, Candidate]]] = {}
    for task in history.tasks:
        for candidate in task.candidates:
            if not candidate.status.timed:
                key = (candidate.status.value, candidate.cause)
                groups.setdefault(key, []).append((task.name, candidate))
    found = [
        Failures(
            status,
            cause,
            len(rows),
            tuple(dict.fromkeys(name for name, _ in rows)),
            next((c.error for _, c in rows if c.error), ""),
        )
        for (status, cause), rows in groups.items()
    ]
    return sorted(found, key=lambda f: (-f.count, f.status, f.cause))


def seconds_by_phase(rounds: Iterable[RoundTime]) -> dict[str, float]:
    """Seconds of all rounds by phase."""
    total: dict[str, float] = {}
    for spent in rounds:
        for phase, seconds in spent.seconds.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


@dataclass(frozen=True)
class RoundSpan:
    """Consecutive rounds, numbered from 1 over the run, and their mean seconds by phase."""

    first: int
    last: int
    seconds: dict[str, float]


def spans_of(rounds: Sequence[RoundTime], most: int = 60) -> list[RoundSpan]:
    """Rounds in order, so many neighbours taken together that at most ``most`` spans result."""
    size = max(1, math.ceil(len(rounds) / most))
    spans = []
    for begin in range(0, len(rounds), size):
        part = rounds[begin : begin + size]
        mean = {phase: value / len(part) for phase, value in seconds_by_phase(part).items()}
        spans.append(RoundSpan(begin + 1, begin + len(part), mean))
    return spans
