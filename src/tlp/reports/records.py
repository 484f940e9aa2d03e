"""Tables of imports, data sets and splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tlp.reports.tables import make_table

if TYPE_CHECKING:
    from tlp.records.dataset import DataSet
    from tlp.records.importer import Imported
    from tlp.records.splits import Split


def show_import(done: Imported, out: Console) -> None:
    """What became of every line."""
    manifest = done.manifest
    counts = manifest["counts"]
    if done.complete_before:
        out.print("complete already: the same files with the same options", style="yellow")
    if done.resumed:
        out.print("went on where an import was stopped", style="yellow")
    out.print(
        f"{counts['lines']:,} lines of {len(manifest['sources'])} files = {counts['rows']:,} rows "
        f"+ {counts['rejected']:,} rejected + {counts['blank']:,} blank "
        f"+ {counts['comments']:,} comments"
    )
    if counts["workload_lines"]:
        out.print(
            f"{counts['workload_lines']:,} lines of workloads = {counts['workloads']:,} workloads "
            f"+ {counts['workloads_rejected']:,} rejected + {counts['workloads_blank']:,} blank"
        )
    out.print(
        f"{manifest['primitives']:,} distinct primitives of {manifest['occurrences']:,}, "
        f"{manifest['tasks']:,} tasks"
    )
    if counts["autotvm"]:
        from tlp.records.ansor_log import AUTOTVM

        out.print(f"{counts['autotvm']:,} lines were refused, each is {AUTOTVM}", style="yellow")
    if done.others:
        names = ", ".join(path.name for path in done.others[:4])
        out.print(f"{len(done.others)} other files were left out: {names}", markup=False)
    rejected = done.out / manifest["parts"] / "rejected.jsonl" if "parts" in manifest else None
    if rejected is not None and counts["rejected"] + counts["workloads_rejected"]:
        print(f"rejected: {rejected}")
    print(f"data set: {done.out}")


def _count(name: str, values: Mapping[str, int], out: Console, most: int = 12) -> None:
    total = sum(values.values()) or 1
    table = make_table([(name, "left"), ("number", "right"), ("share", "right")])
    for value, number in list(values.items())[:most]:
        table.add_row(
            Text(_shortened(value, 70) or "not said"), f"{number:,}", f"{number / total:.1%}"
        )
    if len(values) > most:
        rest = sum(list(values.values())[most:])
        table.add_row(f"{len(values) - most} more", f"{rest:,}", f"{rest / total:.1%}")
    out.print(table)


def _shortened(text: str, width: int) -> str:
    """A long text without its middle: a platform's end says where it comes from."""
    if len(text) <= width:
        return text
    end = width // 2
    return f"{text[: width - end - 1]}…{text[-end:]}"


def _spread(values: Mapping[str, float], unit: float = 1.0) -> str:
    return "  ".join(f"{name} {unit * value:.3g}" for name, value in values.items())


def show_inspection(found: Mapping[str, Any], out: Console) -> None:
    """What `tlp.records.inspection` found."""
    out.print(
        f"{found['rows']:,} rows, {found['workloads']:,} workloads, {found['groups']:,} lists "
        f"(workload and platform), {found['primitives']:,} distinct primitives"
    )
    table = make_table(
        [("platform", "left"), ("rows", "right"), ("failed", "right"), ("workloads", "right")]
    )
    for platform in found["platforms"][:16]:
        table.add_row(
            Text(_shortened(platform["platform"], 62)),
            f"{platform['rows']:,}",
            f"{platform['failed']:,}",
            f"{platform['workloads']:,}",
        )
    out.print(table)
    if len(found["platforms"]) > 16:
        out.print(f"and {len(found['platforms']) - 16} more platforms")
    for platform in found["platforms"]:
        if len(platform["targets"]) > 1:
            out.print(
                f"note: platform {platform['platform']} has {len(platform['targets'])} targets; "
                "their latencies are compared with each other",
                style="yellow",
                markup=False,
            )
    _count("workloads of network", found["networks"], out)
    _count("version", found["versions"], out)
    _count("status", found["statuses"], out)
    _count("kind of primitive", found["kinds"], out, 40)
    if found["unknown"]:
        _count("unknown instruction", found["unknown"], out)
    out.print(f"primitives a sequence  {_spread(found['lengths'])}")
    out.print(f"latency, us            {_spread(found['latency_s'], 1e6)}")
    out.print(f"score                  {_spread(found['scores'])}")
    out.print(f"{found['measured_again']:,} rows measure a sequence of their list again")
    for name, one in found["collisions"].items():
        out.print(
            f"encoded as {name} ({one['length']} x {one['width']}): {one['coinciding']:,} of "
            f"{one['distinct']:,} distinct sequences coincide with another ({one['share']:.2%})"
        )


def show_splits(splits: Sequence[Split], data: DataSet, out: Console) -> None:
    """One line a split."""
    table = make_table(
        [
            ("held out", "left"),
            ("train", "right"),
            ("valid", "right"),
            ("test", "right"),
            ("of those shared", "right"),
        ]
    )
    for split in splits:
        sides = (split.train, split.valid, split.test, split.shared)
        table.add_row(
            Text(_shortened(", ".join(split.held_out), 50)), *(f"{len(side):,}" for side in sides)
        )
    out.print(table)
    out.print(f"numbers are workloads; {len(data.workloads):,} in all")
