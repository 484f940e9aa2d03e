"""How fast models train and score on one thread.

    tlp import ../shared/ansor-x86 --out data/x86
    python -m benchmarks.model_speed data/x86

- published plain: TLP as published, every position of every sequence computed anew
- published table: the same model, each distinct primitive of a batch computed once
- tlp: ours, in the table form
- lightgbm: lambdarank with 63 leaves

A network's step is a batch of 1,024 programs: scores, loss, gradients, Adam. A round of trees goes
over all rows, so its samples are rows times rounds. Each model reads its own encoding. Contenders
alternate, and the fastest repeat of each counts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import write_result
from tlp.host import available_cores, pin_process
from tlp.training.programs import Programs

BATCH = 512


class Network:
    """A sequence model that trains and scores."""

    def __init__(self, name: str, programs: Programs, plain: bool, seed: int) -> None:
        import torch

        from tlp.models.config import architecture
        from tlp.models.sequence import SequenceModel
        from tlp.ranking.losses import LOSSES
        from tlp.training.batches import make_batches, useful_rows
        from tlp.training.settings import settings_for

        self.plain, self.programs = plain, programs
        self.settings = settings_for(name, seed=seed)
        length, width = programs.indices.shape[1], programs.table.shape[1]
        self.model = SequenceModel(architecture(name), width, length, seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate)
        self.loss = LOSSES[self.settings.loss]
        rows = useful_rows(programs.labels, programs.groups, self.settings)
        self.batches = make_batches(rows, programs.groups, self.settings, 0)
        self.table = torch.from_numpy(programs.table)

    def scores(self, rows: Any) -> Any:
        import torch

        from tlp.training.batches import occurring

        mask = self.programs.mask[rows]
        indices = self.programs.indices[rows]
        if self.plain:
            found = np.where(mask, indices, 0).astype(np.int64)
            return self.model.plain(self.table[torch.from_numpy(found)], torch.from_numpy(mask))
        needed, found = occurring(len(self.table), indices, mask)
        return self.model(
            self.table[torch.from_numpy(needed)], torch.from_numpy(found), torch.from_numpy(mask)
        )

    def train(self, seconds: float) -> float:
        """Samples a second."""
        import torch

        self.model.train()
        labels = torch.from_numpy(self.programs.labels.astype(np.float32))
        number = itertools.count()

        def step() -> int:
            batch = self.batches[next(number) % len(self.batches)]
            loss = self.loss(
                self.scores(batch.rows),
                labels[torch.from_numpy(batch.rows)],
                groups=torch.from_numpy(batch.lists),
            )
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            return len(batch.rows)

        return _rate(step, seconds)

    def score(self, seconds: float) -> float:
        """Candidates a second."""
        import torch

        from tlp.models.scoring import score_sequences

        self.model.eval()
        programs = self.programs

        def step() -> int:
            if self.plain:
                with torch.inference_mode():
                    for begin in range(0, len(programs), BATCH):
                        self.scores(np.arange(begin, min(begin + BATCH, len(programs))))
            else:
                score_sequences(self.model, programs.table, programs.indices, programs.mask, BATCH)
            return len(programs)

        return _rate(step, seconds)


class Trees:
    """LightGBM, trained anew in each repeat."""

    def __init__(self, programs: Programs, rounds: int, seed: int) -> None:
        from tlp.models.boosted import BoostedTrees

        self.programs, self.rounds = programs, rounds
        self.nothing = programs.take(np.arange(0))
        self.ranker = BoostedTrees("lightgbm-rank", seed=seed, rounds=rounds, threads=1)

    def train(self, seconds: float) -> float:
        """Rows times rounds a second, binning included."""
        start = time.perf_counter()
        self.ranker.fit(self.programs, self.nothing)
        return len(self.programs) * self.rounds / (time.perf_counter() - start)

    def score(self, seconds: float) -> float:
        """Candidates a second, flattening included."""
        programs = self.programs

        def step() -> int:
            self.ranker.score(programs.table, programs.indices, programs.mask)
            return len(programs)

        return _rate(step, seconds)


def _rate(step: Callable[[], int], seconds: float) -> float:
    """Samples a second of a step that is repeated for at least so long."""
    start, samples = time.perf_counter(), 0
    while True:
        samples += step()
        spent = time.perf_counter() - start
        if spent >= seconds:
            return samples / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=300, help="of trees")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pin_process(available_cores()[:1])
    import torch

    import tlp.records
    from tlp.primitives.encoding import PAPER_CPU
    from tlp.training.data import load_programs

    torch.set_num_threads(1)
    data = tlp.records.open(arguments.data)
    sides = {
        encoding.name: load_programs(data, data.workloads, encoding)
        for encoding in (PAPER_CPU, data.encoding)
    }
    count = len(sides[PAPER_CPU.name])
    rng = np.random.default_rng(arguments.seed)
    rows = np.sort(rng.permutation(count)[: arguments.rows])
    paper, ours = (sides[name].take(rows) for name in (PAPER_CPU.name, data.encoding.name))
    contenders: dict[str, Any] = {
        "published_plain": Network("tlp-published", paper, True, arguments.seed),
        "published_table": Network("tlp-published", paper, False, arguments.seed),
        "tlp": Network("tlp", ours, False, arguments.seed),
        "lightgbm": Trees(ours, arguments.rounds, arguments.seed),
    }
    runs: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        for name, contender in contenders.items():
            measures: dict[str, Callable[[float], float]] = {
                "train": contender.train,
                "score": contender.score,
            }
            for what, measure in measures.items():
                found = measure(arguments.seconds)
                runs.setdefault(f"{name}_{what}_per_second", []).append(found)
                print(f"{name} {what} {found:,.0f}/s", flush=True)
    best = {name: max(found) for name, found in runs.items()}
    write_result(
        "model_speed",
        {
            **best,
            "table_over_plain_train": best["published_table_train_per_second"]
            / best["published_plain_train_per_second"],
            "table_over_plain_score": best["published_table_score_per_second"]
            / best["published_plain_score_per_second"],
            "parameters_published": _parameters(contenders["published_table"]),
            "parameters_tlp": _parameters(contenders["tlp"]),
        },
        {
            "data": data.fingerprint,
            "rows": len(rows),
            "rounds": arguments.rounds,
            "batch_scoring": BATCH,
            "seconds": arguments.seconds,
            "repeats": arguments.repeats,
            "seed": arguments.seed,
            "encodings": {
                "published": [PAPER_CPU.length, PAPER_CPU.width],
                "others": [data.encoding.length, data.encoding.width],
            },
        },
        runs=runs,
    )


def _parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.model.parameters())


if __name__ == "__main__":
    main()
