"""How long importing logs takes, against bare decoding of the same lines.

    python -m benchmarks.import_speed ../shared/ansor-x86

Each contender runs in a process of its own, pinned to one core, or to two with two readers:

- orjson: `orjson.loads` of every line, the rest of that process not counted
- ours: the whole import: unpack, validate, number primitives, write Parquet, fit the encoding
- plain: `json.loads`, loops over the steps, a dict that numbers them, Parquet
- pair: two imports of their own side by side, one a core: what two cores of this machine are worth.
  Where they are two threads of one core, no program can be twice as fast on both.

They alternate; ratios are medians over the rounds, of times that were taken one after the other,
since machines change their pace. Peak memory is that of all processes of an
import together.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tlp.host import available_cores, pin_process

CONTENDERS = ("orjson", "one", "two", "pair", "plain")


def _lines(logs: list[Path]) -> Iterator[list[bytes]]:
    from tlp.records.logs import find_logs, read_blocks

    for log in find_logs(logs)[0]:
        for block, _ in read_blocks(log.path):
            yield block.data.split(b"\n")


def bare(logs: list[Path], out: Path) -> dict[str, float]:
    import orjson

    seconds, lines = 0.0, 0
    for found in _lines(logs):
        start = time.perf_counter()
        for line in found:
            orjson.loads(line)
        seconds += time.perf_counter() - start
        lines += len(found)
    return {"seconds": seconds, "lines": lines}


def ours(logs: list[Path], out: Path, jobs: int) -> dict[str, float]:
    start = time.perf_counter()
    from tlp.records.importer import import_logs

    manifest = import_logs(logs, out / "data", jobs=jobs).manifest
    return {"seconds": time.perf_counter() - start, "lines": manifest["counts"]["lines"]}


def plain(logs: list[Path], out: Path) -> dict[str, float]:
    start = time.perf_counter()
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers: dict[tuple[Any, ...], int] = {}
    lines = 0
    for part, found in enumerate(_lines(logs)):
        rows = []
        for line in found:
            record = json.loads(line)
            (key, target, *_), (_, steps) = record["i"]
            sequence = []
            for step in steps:
                flat: list[Any] = []
                for value in step:
                    flat += value if isinstance(value, list) else [value]
                sequence.append(numbers.setdefault(tuple(flat), len(numbers)))
            costs, error, _, stamp = record["r"]
            if not all(isinstance(cost, float | int) and cost > 0 for cost in costs):
                raise ValueError(line)
            rows.append(
                {
                    "workload": key,
                    "target": target,
                    "sequence": sequence,
                    "latencies": costs,
                    "error": error,
                    "time": stamp,
                    "version": record["v"],
                }
            )
        pq.write_table(pa.Table.from_pylist(rows), out / f"rows-{part}.parquet")
        lines += len(rows)
    return {"seconds": time.perf_counter() - start, "lines": lines}


def _measure(contender: str, logs: list[Path], core: int) -> dict[str, float]:
    """One run, in this process."""
    cores = available_cores()
    pin_process(cores[:2] if contender == "two" else (cores[core],))
    run: dict[str, Callable[[list[Path], Path], dict[str, float]]] = {
        "orjson": bare,
        "one": lambda logs, out: ours(logs, out, 1),
        "two": lambda logs, out: ours(logs, out, 2),
        "plain": plain,
    }
    with tempfile.TemporaryDirectory() as temporary:
        found = run[contender](logs, Path(temporary))
    children = 2 if contender == "two" else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak += children * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {**found, "peak_mb": peak / 1024}


def _start(contender: str, logs: list[Path], core: int = 0) -> subprocess.Popen[str]:
    options = ["--run", contender, "--core", str(core)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.import_speed", *options, *map(str, logs)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )


def _in_child(contender: str, logs: list[Path]) -> dict[str, float]:
    """One run in a process of its own, or the slower of two side by side."""
    if contender == "pair":
        children = [_start("one", logs, core) for core in (0, 1)]
    else:
        children = [_start(contender, logs)]
    runs: list[dict[str, float]] = []
    for child in children:
        told, _ = child.communicate()
        if child.returncode:
            sys.exit(f"{contender} ended with {child.returncode}")
        runs.append(json.loads(told.splitlines()[-1]))
    found = max(runs, key=lambda one: one["seconds"])
    print(f"{contender:7s} {found['seconds']:.2f} s", file=sys.stderr, flush=True)
    return found


def _ratio(some: list[dict[str, float]], others: list[dict[str, float]]) -> float:
    """Median over rounds of the time that one contender took over that of the other."""
    return statistics.median(
        one["seconds"] / other["seconds"] for one, other in zip(some, others, strict=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--run", choices=CONTENDERS, help="one contender, here")
    parser.add_argument("--core", type=int, default=0, help="on which core, with --run")
    arguments = parser.parse_args()
    logs = [path.resolve() for path in arguments.logs]
    if arguments.run:
        print(json.dumps(_measure(arguments.run, logs, arguments.core)))
        return
    from benchmarks.common import write_result

    if len(available_cores()) < 2:
        sys.exit("this needs two cores")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for repeat in range(arguments.repeats):
        for name in CONTENDERS:
            # The plain one is slow and far behind.
            if name != "plain" or repeat == 0:
                runs[name].append(_in_child(name, logs))
    counts = {one["lines"] for found in runs.values() for one in found}
    if len(counts) != 1:
        sys.exit(f"the contenders read different numbers of lines: {counts}")
    peaks = [one["peak_mb"] for name in ("one", "two") for one in runs[name]]
    write_result(
        "import_speed",
        {
            "time_over_orjson": _ratio(runs["one"], runs["orjson"]),
            "speedup_over_plain": _ratio(runs["plain"], runs["one"]),
            "scaling_two_processes": _ratio(runs["one"], runs["two"]),
            "scaling_two_imports": 2 * _ratio(runs["one"], runs["pair"]),
            "peak_memory_mb": max(peaks),
            "lines": counts.pop(),
            "lines_per_second": statistics.median(
                one["lines"] / one["seconds"] for one in runs["one"]
            ),
        },
        {"logs": [path.name for path in logs], "repeats": arguments.repeats, "seed": 0},
        runs=runs,
    )


if __name__ == "__main__":
    main()
