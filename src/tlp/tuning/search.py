"""One round's proposals: score a generation of rows, pick the few worth replaying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp.models.scorer import Scorer, Scores
from tlp.tuning.space import DecisionSpace, Rows

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SearchSettings:
    """How a round searches.

    Parameters
    ----------
    picks
        Candidates measured in a round.
    scored
        Rows scored in a round, at least; fewer only where fewer are left.
    random_share
        Share of picks drawn at random once the model knows the task.
    parents
        Best measured rows that are mutated and crossed.
    generations
        Times the best scored rows are mutated again.
    spread
        A pick differs from every earlier one of its round in at least this many decisions.
    draws
        Before a model knows the task, random rows drawn for each pick: those come first whose
        innermost tiles cover whole cache lines and, among them, those that do not unroll the most.
        1 is uniform sampling.
    """

    picks: int = 10
    scored: int = 10_000
    random_share: float = 0.1
    parents: int = 32
    generations: int = 3
    spread: int = 3
    draws: int = 10


@dataclass(frozen=True)
class Proposals:
    """Rows in the order in which they should be tried.

    Parameters
    ----------
    rows
        ``int32 [n, 1 + d]``, most promising first; random ones stand in between.
    scores
        ``float32 [n]``.
    random
        ``bool [n]``: drawn at random, not for its score.
    scored
        Number of distinct, not yet tried rows that were scored.
    reused
        So many rows at the beginning were fast elsewhere.
    """

    rows: Rows
    scores: Scores
    random: npt.NDArray[np.bool_]
    scored: int
    reused: int = 0

    def after(self, rows: Rows, scores: Scores) -> Proposals:
        """These proposals after rows that were fast elsewhere."""
        return Proposals(
            np.concatenate([rows, self.rows]),
            np.concatenate([scores, self.scores]),
            np.concatenate([np.zeros(len(rows), np.bool_), self.random]),
            self.scored + len(rows),
            len(rows),
        )


class _Pool:
    """Distinct rows that keep to the limits and were not tried before, with their scores."""

    def __init__(self, space: DecisionSpace, tried: Hashes) -> None:
        self._space = space
        self._tried = np.sort(tried)
        self._hashes: Hashes = np.zeros(0, np.uint64)
        self.rows: Rows = np.zeros((0, space.width), np.int32)
        self.scores: Scores = np.zeros(0, np.float32)

    def fresh(self, rows: Rows) -> tuple[Rows, Hashes]:
        rows = rows[self._space.allowed(rows)]
        hashes, first = np.unique(self._space.hashes(rows), return_index=True)
        new = ~np.isin(hashes, self._tried, assume_unique=True)
        new &= ~np.isin(hashes, self._hashes, assume_unique=True)
        return rows[first[new]], hashes[new]

    def add(self, rows: Rows, hashes: Hashes, scores: Scores) -> None:
        self.rows = np.concatenate([self.rows, rows])
        self.scores = np.concatenate([self.scores, scores])
        self._hashes = np.concatenate([self._hashes, hashes])

    def top(self, count: int) -> npt.NDArray[np.intp]:
        count = min(count, len(self.scores))
        best = np.argpartition(-self.scores, count - 1)[:count] if count else np.zeros(0, np.intp)
        return best[np.argsort(-self.scores[best], kind="stable")]


def propose(
    space: DecisionSpace,
    scorer: Scorer,
    task: str,
    tried: Hashes,
    parents: Rows,
    rng: np.random.Generator,
    settings: SearchSettings,
    wanted: int,
) -> Proposals:
    """Score at least ``settings.scored`` new rows of a task and order the best of them.

    Parameters
    ----------
    tried
        Hashes of rows measured, refused or known to be aliases.
    parents
        Best measured rows, fastest first.
    wanted
        Number of proposals to return, at most.
    """
    pool = _Pool(space, tried)

    def add(rows: Rows) -> None:
        rows, hashes = pool.fresh(rows)
        if len(rows):
            pool.add(rows, hashes, scorer.score(task, space, rows))

    everything = space.enumerate(2 * settings.scored)
    if everything is not None:
        add(everything)
    else:
        _grow(space, scorer.knows(task), parents[: settings.parents], rng, settings, pool, add)
    chosen, random = _order(space, pool, scorer.knows(task), rng, settings, wanted)
    return Proposals(pool.rows[chosen], pool.scores[chosen], random, len(pool.rows))


def _grow(
    space: DecisionSpace,
    known: bool,
    parents: Rows,
    rng: np.random.Generator,
    settings: SearchSettings,
    pool: _Pool,
    add: object,
) -> None:
    assert callable(add)
    share = settings.scored // (settings.generations + 2)
    if not known or not len(parents):
        add(space.uniform(rng, settings.scored))
    else:
        add(space.uniform(rng, share))
        spread = parents[rng.integers(0, len(parents), size=share)]
        add(np.concatenate([space.mutate(rng, spread), space.crossover(rng, parents, share // 2)]))
        for _ in range(settings.generations):
            elite = pool.rows[pool.top(share // 4)]
            again = elite[rng.integers(0, len(elite), size=share)]
            add(np.concatenate([space.mutate(rng, again), space.crossover(rng, elite, share // 2)]))
    for _ in range(20):
        if len(pool.rows) >= settings.scored:
            break
        add(space.uniform(rng, settings.scored))


def _order(
    space: DecisionSpace,
    pool: _Pool,
    known: bool,
    rng: np.random.Generator,
    settings: SearchSettings,
    wanted: int,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Indices into the pool: the best by score, spread out, with random ones mixed in."""
    total = min(wanted, len(pool.rows))
    if not total:
        return np.zeros(0, np.intp), np.zeros(0, np.bool_)
    if not known:
        drawn = rng.permutation(len(pool.rows))
        if settings.draws > 1:
            head = drawn[: settings.draws * settings.picks]
            rows = pool.rows[head]
            order = np.lexsort((space.unrolls_most(rows), -space.line_use(rows)))
            drawn[: len(head)] = head[order]
        return drawn[:total], np.ones(total, np.bool_)
    ranked = _spread(pool.rows, pool.top(40 * wanted), total, settings.spread)
    every = max(2, round(1 / settings.random_share)) if settings.random_share > 0 else 0
    chosen: list[int] = []
    random: list[bool] = []
    taken: set[int] = set()
    queue = iter(ranked)
    lottery = iter(rng.permutation(len(pool.rows)))
    while len(chosen) < total:
        draw = bool(every) and len(chosen) % every == every - 1
        index = next((i for i in (lottery if draw else queue) if i not in taken), None)
        if index is None:
            index = next((i for i in lottery if i not in taken), None)
            draw = True
            if index is None:
                break
        taken.add(int(index))
        chosen.append(int(index))
        random.append(draw)
    return np.array(chosen, np.intp), np.array(random, np.bool_)


def _spread(
    rows: Rows, ranked: npt.NDArray[np.intp], count: int, distance: int
) -> npt.NDArray[np.intp]:
    """The first of the ranked rows that differ enough from those before, then the others."""
    kept: list[int] = []
    skipped: list[int] = []
    for index in ranked:
        if len(kept) >= count:
            break
        if kept and int((rows[kept] != rows[index]).sum(axis=1).min()) < distance:
            skipped.append(int(index))
        else:
            kept.append(int(index))
    return np.array((kept + skipped)[:count], np.intp)
