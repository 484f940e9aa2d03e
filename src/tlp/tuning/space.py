"""The decision space: candidates of a task as rows of small integers.

A sketch is a trace without its decisions. Each of its sampling instructions takes one of a list
of values, so a candidate is a sketch and one index a decision. Rows are ``int32 [n, 1 + d]``:
the sketch, then an index into each decision's values; unused columns hold -1.

Replay repairs decisions (a compute location that the loops do not offer, a tile of an extent
that other decisions changed), so the number of rows is an upper bound of the number of programs,
and values that come back from a replay are added to the lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tlp.tuning.decisions import Decision, DecisionKind, Decisions
from tlp.tuning.limits import SketchLimits

Rows = npt.NDArray[np.int32]

_HASH_SEED = 0x7F4A7C15
# Rows drawn at once, and in all for one sketch, in search of some that keep to the limits; tries
# to mutate a row into one that does; rows looked through for each one of a whole space.
_CHUNK = 1 << 16
_MOST_DRAWS = 1 << 21
_MUTATIONS = 6
_SIEVE = 64
_SPATIAL_PARTS = 4


class DecisionSpace:
    """All candidates of a task.

    Parameters
    ----------
    sketches
        The decisions of each sketch, in the order of its trace.
    limits
        What rows of each sketch must keep to; nothing by default.
    line
        Values of the output in a cache line; 0 where lines are not to be filled, as on a GPU.
    """

    def __init__(
        self,
        sketches: Sequence[Sequence[Decision]],
        limits: Sequence[SketchLimits] = (),
        line: int = 0,
    ) -> None:
        if not sketches:
            raise ValueError("a decision space needs at least one sketch")
        self.limits = tuple(limits) or (SketchLimits(),) * len(sketches)
        self.sketches: tuple[tuple[Decision, ...], ...] = tuple(tuple(s) for s in sketches)
        self.line = line
        self.width = 1 + max(len(decisions) for decisions in self.sketches)
        rng = np.random.default_rng(_HASH_SEED)
        self._multipliers = rng.integers(1, 2**63, size=self.width, dtype=np.uint64) | np.uint64(1)
        self._layout = _feature_layout(self.sketches)

    @property
    def upper_bound(self) -> int:
        """Number of rows; replay maps some of them to the same program."""
        return sum(self.sketch_size(sketch) for sketch in range(len(self.sketches)))

    def sketch_size(self, sketch: int) -> int:
        """Number of rows of one sketch."""
        size = 1
        for decision in self.sketches[sketch]:
            size *= len(decision)
        return size

    def row(self, sketch: int, decisions: Decisions) -> Rows:
        """Row ``int32 [1 + d]`` of explicit decisions; unknown tiles and locations are added.

        Raises
        ------
        ValueError
            If the sketch has another number of decisions, or a category is unknown.
        """
        space = self.sketches[sketch]
        if len(decisions) != len(space):
            raise ValueError(
                f"sketch {sketch} has {len(space)} decisions, {len(decisions)} were given"
            )
        row = np.full(self.width, -1, np.int32)
        row[0] = sketch
        for position, (decision, value) in enumerate(zip(space, decisions, strict=True)):
            row[1 + position] = decision.index_of(tuple(value))
        return row

    def decisions(self, row: Rows) -> tuple[int, Decisions]:
        """Sketch and explicit decisions of a row."""
        sketch = int(row[0])
        return sketch, tuple(
            decision.values[int(row[1 + position])]
            for position, decision in enumerate(self.sketches[sketch])
        )

    def record_replay(self, asked: Rows, granted: Rows) -> None:
        """Learn which compute locations replays grant."""
        for position, decision in enumerate(self.sketches[int(asked[0])]):
            if decision.kind is DecisionKind.LOCATION:
                decision.record(int(asked[1 + position]), int(granted[1 + position]))

    def hashes(self, rows: Rows) -> npt.NDArray[np.uint64]:
        """64-bit hash of each row, for set operations on whole generations."""
        mixed = (rows.astype(np.int64) + 2).astype(np.uint64) * self._multipliers[None, :]
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        total = mixed.sum(axis=1, dtype=np.uint64)
        total *= np.uint64(0x94D049BB133111EB)
        return total ^ (total >> np.uint64(31))

    def allowed(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows keep to the limits, ``bool [n]``."""
        result = np.ones(len(rows), np.bool_)
        for sketch, limits in enumerate(self.limits):
            if limits:
                chosen = np.flatnonzero(rows[:, 0] == sketch)
                tables = [decision.numbers for decision in self.sketches[sketch]]
                result[chosen] = limits.allowed(tables, rows[chosen, 1:])
        return result

    def line_use(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Share of the touched cache lines that the innermost spatial tile covers, ``[n]``.

        MetaSchedule tiles spatial loops into four parts on a CPU, and the last part of the last
        one is what becomes a vector. A sketch without such a tile has 1.
        """
        share = np.ones(len(rows))
        for sketch, decisions in enumerate(self.sketches if self.line else ()):
            tiles = [
                position
                for position, decision in enumerate(decisions)
                if decision.kind is DecisionKind.TILE and decision.width == _SPATIAL_PARTS
            ]
            if tiles:
                chosen = np.flatnonzero(rows[:, 0] == sketch)
                covered = decisions[tiles[-1]].numbers[rows[chosen, 1 + tiles[-1]], -1]
                share[chosen] = covered / (np.ceil(covered / self.line) * self.line)
        return share

    def unrolls_most(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows take the largest unroll step, the only category of a CPU's sketch, ``[n]``.

        Such programs compile several times as long as the others; none does on a GPU's space.
        """
        most = np.zeros(len(rows), np.bool_)
        for sketch, decisions in enumerate(self.sketches if self.line else ()):
            chosen = np.flatnonzero(rows[:, 0] == sketch)
            for position, decision in enumerate(decisions):
                if decision.kind is DecisionKind.CATEGORY:
                    step = decision.numbers[rows[chosen, 1 + position], 0]
                    most[chosen] |= step == decision.numbers.max()
        return most

    def uniform(self, rng: np.random.Generator, count: int, limited: bool = True) -> Rows:
        """Random rows: each sketch alike, each value of a decision alike.

        Parameters
        ----------
        limited
            Draw anew what breaks a limit. Where hardly any row keeps to them, fewer than
            ``count`` come back.
        """
        rows = np.full((count, self.width), -1, np.int32)
        rows[:, 0] = rng.integers(0, len(self.sketches), size=count)
        for sketch, limits in enumerate(self.limits):
            chosen = np.flatnonzero(rows[:, 0] == sketch)
            if limited and limits:
                found = self._draw_allowed(rng, sketch, len(chosen))
                rows[chosen[: len(found)]] = found
                rows[chosen[len(found) :], 0] = -1
            else:
                rows[chosen] = self._draw(rng, sketch, len(chosen))
        return rows[rows[:, 0] >= 0]

    def _draw(self, rng: np.random.Generator, sketch: int, count: int) -> Rows:
        rows = np.full((count, self.width), -1, np.int32)
        rows[:, 0] = sketch
        for position, decision in enumerate(self.sketches[sketch]):
            rows[:, 1 + position] = decision.sample(rng, count)
        return rows

    def _draw_allowed(self, rng: np.random.Generator, sketch: int, count: int) -> Rows:
        """Rows of a sketch that keep to its limits: rejection in bulk, a few in a hundred pass."""
        parts = [np.zeros((0, self.width), np.int32)]
        found = drawn = 0
        while found < count and drawn < _MOST_DRAWS:
            share = max(found, 1) / max(drawn, 1)
            rows = self._draw(rng, sketch, min(_CHUNK, 256 + int(1.2 * (count - found) / share)))
            drawn += len(rows)
            parts.append(rows[self.allowed(rows)])
            found += len(parts[-1])
        return np.concatenate(parts)[:count]

    def mutate(self, rng: np.random.Generator, rows: Rows) -> Rows:
        """Change one to three decisions of each row, half of the time to a neighbouring value.

        What breaks a limit is changed in another way; a few such rows may be left.
        """
        changed = self._mutate(rng, rows)
        for _ in range(_MUTATIONS if any(self.limits) else 0):
            broken = np.flatnonzero(~self.allowed(changed))
            if not len(broken):
                break
            changed[broken] = self._mutate(rng, rows[broken])
        return changed

    def _mutate(self, rng: np.random.Generator, rows: Rows) -> Rows:
        rows = rows.copy()
        for sketch, decisions in enumerate(self.sketches):
            chosen = np.flatnonzero(rows[:, 0] == sketch)
            free = [p for p, decision in enumerate(decisions) if len(decision) > 1]
            if not len(chosen) or not free:
                continue
            for chance in (1.0, 0.5, 0.25):
                active = chosen[rng.random(len(chosen)) < chance]
                column = rng.choice(np.array(free), size=len(active))
                near = rng.random(len(active)) < 0.5
                for position in free:
                    here = active[(column == position) & near]
                    rows[here, 1 + position] = decisions[position].neighbours(
                        rng, rows[here, 1 + position]
                    )
                    here = active[(column == position) & ~near]
                    rows[here, 1 + position] = decisions[position].sample(rng, len(here))
        return rows

    def crossover(self, rng: np.random.Generator, rows: Rows, count: int) -> Rows:
        """Mix pairs of rows of the same sketch decision by decision: at most ``count`` rows."""
        if not len(rows):
            return rows
        first = rows[rng.integers(0, len(rows), size=count)]
        second = rows[rng.integers(0, len(rows), size=count)]
        same = first[:, 0] == second[:, 0]
        first, second = first[same], second[same]
        return np.where(rng.random(first.shape) < 0.5, first, second).astype(np.int32)

    def enumerate(self, most: int) -> Rows | None:
        """Every row that keeps to the limits, or None if there are (or may be) more than ``most``.

        With limits a larger space is sieved: most of its rows break them.
        """
        if self.upper_bound > most * (_SIEVE if any(self.limits) else 1):
            return None
        parts = []
        for sketch, decisions in enumerate(self.sketches):
            size = self.sketch_size(sketch)
            rows = np.full((size, self.width), -1, np.int32)
            rows[:, 0] = sketch
            remainder = np.arange(size)
            for position, decision in enumerate(decisions):
                rows[:, 1 + position] = remainder % len(decision)
                remainder //= len(decision)
            parts.append(rows[self.allowed(rows)])
        return np.concatenate(parts) if sum(len(part) for part in parts) <= most else None

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of :meth:`encode`."""
        return list(self._layout.names)

    def encode(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Features of rows, ``float32 [n, f]``; NaN where a sketch lacks the decision.

        The sketch is one of as many columns of zeros and ones. Decisions of the same kind stand
        in the same columns whatever the sketch; tiles as log2
        of their factors, followed by the sums a tree cannot build by itself: log2 of the
        iterations at each tiling level, over all tiles of the same number of parts.
        """
        layout = self._layout
        encoded = np.full((len(rows), len(layout.names)), np.nan, np.float32)
        for sketch, decisions in enumerate(self.sketches):
            chosen = np.flatnonzero(rows[:, 0] == sketch)
            if not len(chosen):
                continue
            block = np.full((len(chosen), len(layout.names)), np.nan, np.float32)
            block[:, : len(self.sketches)] = 0
            block[:, sketch] = 1
            for start, stop in layout.levels.values():
                block[:, start:stop] = 0
            for position, decision in enumerate(decisions):
                start = layout.starts[sketch][position]
                values = decision.features[rows[chosen, 1 + position]]
                block[:, start : start + decision.width] = values
                if decision.kind is DecisionKind.TILE:
                    level = layout.levels[decision.width]
                    block[:, level[0] : level[1]] += values
            encoded[chosen] = block
        return encoded


class _FeatureLayout:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.starts: list[list[int]] = []
        self.levels: dict[int, tuple[int, int]] = {}


def _feature_layout(sketches: Sequence[Sequence[Decision]]) -> _FeatureLayout:
    """Give the n-th decision of a kind and width the same columns in every sketch."""
    layout = _FeatureLayout()
    layout.names += [f"sketch{index}" for index in range(len(sketches))]
    slots: dict[tuple[str, int, int], int] = {}
    for decisions in sketches:
        seen: dict[tuple[str, int], int] = {}
        starts = []
        for decision in decisions:
            kind = (decision.kind.value, decision.width)
            seen[kind] = seen.get(kind, -1) + 1
            slot = (*kind, seen[kind])
            if slot not in slots:
                slots[slot] = len(layout.names)
                layout.names += [f"{kind[0]}{seen[kind]}.{part}" for part in range(kind[1])]
            starts.append(slots[slot])
        layout.starts.append(starts)
    widths = {d.width for decisions in sketches for d in decisions if d.kind is DecisionKind.TILE}
    for width in sorted(widths):
        start = len(layout.names)
        layout.levels[width] = (start, start + width)
        layout.names += [f"level{width}.{part}" for part in range(width)]
    return layout
