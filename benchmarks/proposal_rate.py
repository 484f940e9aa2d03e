"""How fast rows are proposed, encoded and scored, against stock's candidates.

    python -m benchmarks.proposal_rate

Ours: the processes are fitted on really measured rounds, then `propose` is timed on rows that were
not tried. Stock: EvolutionarySearch with an XGBModel trained on as many candidates; what it
scores in one `generate_measure_candidates` is counted inside `predict`. Both may use the same
cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Silent, te_task, write_result
from tlp.host import plan_cores
from tlp.measuring.place import LocalPlace
from tlp.measuring.pool import WorkerPool
from tlp.metaschedule.targets import parse_target
from tlp.models.gaussian import OnlineProcess
from tlp.processes import native_output_to
from tlp.records.store import Store, StoredTask
from tlp.tuning.loop import Budget, Loop
from tlp.tuning.search import SearchSettings, propose
from tlp.tuning.state import make_states, subjects_of

WORKLOADS = ("C2D", "GMM", "DEP")
ROUNDS = 6
REPEATS = 15


def ours(name: str, target: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Rate of proposals, and the share of a round that is neither build nor run."""
    with native_output_to(folder / "tvm.log"):
        (state,) = make_states([te_task(name)], target)
        subjects = subjects_of([state])
    store = Store(folder / f"{name}.sqlite")
    store.add_task(StoredTask(state.task.key, name, 1, state.task.flops, "", ()))
    settings = SearchSettings()
    scorer = OnlineProcess(seed)
    rng = np.random.default_rng(seed)
    plan = plan_cores(int(target["num-cores"]))
    with WorkerPool(subjects, LocalPlace(plan), folder / "references", log_dir=folder) as pool:
        loop = Loop([state], store, pool, scorer, Silent(), settings, rng)
        loop.round(state, settings.picks)
        first = store.phase_seconds()
        loop.run(Budget(trials=ROUNDS * settings.picks))
    # The first round also compiles the reference and imports the learner.
    seconds = {k: v - first.get(k, 0.0) for k, v in store.phase_seconds().items()}
    overhead = sum(v for phase, v in seconds.items() if phase not in ("build", "run"))
    rates = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = propose(
            state.space,
            scorer,
            state.task.key,
            state.tried_hashes(),
            state.fastest(settings.parents),
            rng,
            settings,
            5 * settings.picks,
        )
        rates.append(found.scored / (time.perf_counter() - begin))
    return {
        "rows_per_second": statistics.median(rates),
        "scored_a_round": found.scored,
        "search_share": overhead / sum(seconds.values()),
        **{f"{phase}_s": value for phase, value in seconds.items()},
    }


def stock(target: dict[str, Any], seed: int) -> dict[str, float]:
    """Candidates that stock scores a second on C2D, features and search included."""
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    @derived_object
    class Counting(ms.cost_model.PyCostModel):
        """Delegates to XGBModel and counts what it is asked."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = XGBModel(num_warmup_samples=0)
            self.asked = 0

        def load(self, path: str) -> None:
            raise RuntimeError("not used")

        def save(self, path: str) -> None:
            raise RuntimeError("not used")

        def update(self, context: Any, candidates: Any, results: Any) -> None:
            self.inner.update(context, candidates, results)

        def predict(self, context: Any, candidates: Any) -> Any:
            self.asked += len(candidates)
            return self.inner.predict(context, candidates)

    context = ms.TuneContext(
        mod=te_task("C2D").mod,
        target=tvm.target.Target(target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        rand_state=seed + 1,
        num_threads=int(target["num-cores"]),
    )
    model = Counting()
    batch = ROUNDS * SearchSettings().picks
    context.pre_tuning(10 * batch, batch, cost_model=model)
    rng = np.random.default_rng(seed)
    candidates = context.generate_measure_candidates()
    results = [ms.runner.RunnerResult([float(t)], None) for t in rng.uniform(1e-3, 9e-3, batch)]
    context.notify_runner_results(candidates, results)
    before, begin = model.asked, time.perf_counter()
    context.generate_measure_candidates()
    seconds = time.perf_counter() - begin
    return {"candidates": model.asked - before, "seconds": seconds}


def main() -> None:
    """Run the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="native")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = parse_target(options.target)
    with tempfile.TemporaryDirectory() as temporary:
        rows = {name: ours(name, target, options.seed, Path(temporary)) for name in WORKLOADS}
        with native_output_to(Path(temporary) / "stock.log"):
            rival = stock(target, options.seed)
    summary = {
        "proposals_per_second": min(row["rows_per_second"] for row in rows.values()),
        "stock_per_second_c2d": rival["candidates"] / rival["seconds"],
        "search_share": max(row["search_share"] for row in rows.values()),
    }
    settings = {"target": target, "seed": options.seed, "rounds": ROUNDS, "repeats": REPEATS}
    write_result("proposal_rate", summary, settings, ours=rows, stock=rival)


if __name__ == "__main__":
    main()
