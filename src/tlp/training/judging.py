"""Checkpoints judged on the test side of a split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tlp.models.ranker import RandomRanker, Ranker, load_ranker
from tlp.primitives.vocabulary import VOCABULARY_VERSION
from tlp.ranking.judge import Difference, Judgement, compare, judge
from tlp.records.dataset import DataSet
from tlp.records.splits import Split
from tlp.training.data import encoding_of, framework_of, learned, load_side
from tlp.training.programs import Programs

FIGURES = ("top1", "top5", "top10", "ndcg10", "kendall_tau", "regret1")
SUBSETS = 20
SUBSET_SIZE = 1000


@dataclass(frozen=True)
class JudgedModel:
    """One model.

    Attributes
    ----------
    name
        The checkpoint's file.
    model, encoding
        What it is called, and how it reads programs.
    judgement
        Its figures.
    learned
        How many of the test workloads it has learned from.
    differences
        To the first model, by figure of `figures_of`; empty for the first.
    """

    name: str
    model: str
    encoding: str
    judgement: Judgement
    learned: int
    differences: dict[str, Difference]


@dataclass(frozen=True)
class Judged:
    """Models judged on the same programs.

    Attributes
    ----------
    programs, workloads
        How many: workloads count once a platform, and only where a program worked.
    whole
        Whether every list is so short that random lists are the whole ones.
    """

    models: list[JudgedModel]
    programs: int
    workloads: int
    whole: bool


def figures_of(whole: bool) -> dict[str, str]:
    """Keys of a judgement for each of `FIGURES`: of whole lists, or of random ones."""
    return {name: name if whole or name == "kendall_tau" else f"{name}_subsets" for name in FIGURES}


def judge_checkpoints(
    data: DataSet,
    split: Split,
    checkpoints: Sequence[Path],
    *,
    platforms: Collection[str] | None = None,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda share, text: None,
) -> Judged:
    """Score and judge the test side with each model, in its own encoding.

    Parameters
    ----------
    checkpoints
        Files; one named ``random`` that is not there stands for random scores.
    platforms
        Only programs measured on these.
    seed
        Of random lists, of the bootstrap, and of random scores.
    on_progress
        Told the share that is done and what comes next.

    Raises
    ------
    CheckpointError
        If one cannot be read, or is for other schedules.
    """
    framework = framework_of(data, frozenset(split.test)).value
    sides: dict[str, Programs] = {}
    models: list[JudgedModel] = []
    whole = True
    for number, path in enumerate(checkpoints):
        on_progress(number / len(checkpoints), path.name)
        if str(path) == "random" and not path.exists():
            ranker: Ranker = RandomRanker(seed)
            encoding, known = data.encoding, 0
        else:
            ranker, header = load_ranker(path)
            header.require(framework=framework, vocabulary=VOCABULARY_VERSION)
            encoding, known = encoding_of(header), len(learned(header, split.test))
        if encoding.hash not in sides:
            sides[encoding.hash] = load_side(data, split, "test", encoding, platforms=platforms)
        side = sides[encoding.hash]
        scores = ranker.score(side.table, side.indices, side.mask)
        judgement = judge(
            scores,
            side.latencies,
            side.groups,
            weights=side.weights,
            subsets=SUBSETS,
            size=SUBSET_SIZE,
            seed=seed,
        )
        whole = bool(judgement.sizes.max(initial=0) <= SUBSET_SIZE)
        differences = (
            {
                name: compare(judgement, models[0].judgement, key, seed=seed)
                for name, key in figures_of(whole).items()
            }
            if models
            else {}
        )
        models.append(
            JudgedModel(path.name, ranker.name, encoding.name, judgement, known, differences)
        )
    return Judged(models, len(side), int(models[0].judgement.summary()["workloads"]), whole)
