"""A work folder rebuilt by stock TVM alone, against our compiled network.

    python -m benchmarks.stock_recipe runs/mobilenet_v2

The recipe of docs/work-folder.md runs in an interpreter that never imports this package; both
libraries are then timed in alternation on the platform's cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import write_result
from tlp.host import plan_cores
from tlp.measuring.compare import alternate, compiled_contender
from tlp.metaschedule.imports import load_tvm
from tlp.tuning.summary import stored_summary
from tlp.tuning.workdir import WorkDir

RECIPE = """
import json, sys
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

folder, target, output = sys.argv[1], tvm.target.Target(json.loads(sys.argv[2])), sys.argv[3]
with open(folder + "/network/module.json") as stream:
    mod = tvm.ir.load_json(stream.read())
database = ms.database.JSONDatabase(work_dir=folder + "/database")
with target, database:
    mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(mod)
    mod = relax.transform.SplitLayoutRewritePreproc()(mod)
    mod = relax.transform.FoldConstant()(mod)
relax.build(mod, target=target).export_library(output)
assert not any(name.split(".")[0] == "tlp" for name in sys.modules)
"""


def main() -> None:
    """Rebuild, time and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    run = stored_summary(options.folder)
    work = WorkDir(options.folder)
    cores = plan_cores(int(run["target"]["num-cores"])).run
    load_tvm()
    with tempfile.TemporaryDirectory() as temporary:
        library = Path(temporary) / "stock.so"
        arguments = [str(options.folder), json.dumps(run["target"]), str(library)]
        subprocess.run([sys.executable, "-c", RECIPE, *arguments], check=True)
        contenders = [
            compiled_contender(name, path, work.prepared, cores, Path(temporary) / f"{name}.log")
            for name, path in (("ours", work.library), ("stock", library))
        ]
        seconds = alternate(contenders, rounds=options.rounds)
    medians = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    summary = {
        "ours_ms": medians["ours"],
        "stock_recipe_ms": medians["stock"],
        "latency_ratio": medians["stock"] / medians["ours"],
    }
    settings = {
        "network": run["network"],
        "target": run["target"],
        "rounds": options.rounds,
        "seed": run["network"]["seed"],
        "calls": {name: len(values) for name, values in seconds.items()},
    }
    write_result("stock_recipe", summary, settings)


if __name__ == "__main__":
    main()
