"""Logs in, a data set out.

One process cuts files into blocks and writes parts; the blocks are read there or, with several
jobs, by as many other processes. Batches are taken over in the order of the blocks, so the data set
is the same for any number of jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tlp.disk import full_disk_reported
from tlp.errors import MeasureError, RecordsError
from tlp.host import available_cores
from tlp.primitives.vocabulary import VOCABULARY_VERSION
from tlp.records.ansor_log import AUTOTVM, TaskInfo
from tlp.records.logs import MANIFEST, LogFile, digest, find_logs, read_blocks
from tlp.records.metaschedule_log import read_workloads
from tlp.records.names import NetworkMap
from tlp.records.parallel import Item, read_elsewhere, read_here
from tlp.records.schema import VERSION
from tlp.records.writer import PART_ROWS, Counts, Writer, commit, read_manifest

OnProgress = Callable[[float, int, int], None]
"""Called with the share of the bytes that was read, and the numbers of lines and rows."""


# Packed bytes that one process reads before others have started.
_LITTLE = 2**20


@dataclass(frozen=True)
class Imported:
    """What became of an import.

    Parameters
    ----------
    complete_before
        The data set was there already, made of the same files with the same options.
    resumed
        It went on where an earlier import of the same files was stopped.
    others
        Files in the folders that are no logs.
    """

    out: Path
    manifest: dict[str, Any]
    complete_before: bool
    resumed: bool
    others: tuple[Path, ...]


def import_logs(
    paths: Sequence[Path],
    out: Path,
    *,
    platform: str | None = None,
    networks: NetworkMap | None = None,
    jobs: int | None = None,
    replace: bool = False,
    part_rows: int = PART_ROWS,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Import logs into a data set.

    Parameters
    ----------
    paths
        Files, packed or not, and folders.
    out
        Folder of the data set; it holds nothing else, or nothing yet.
    platform
        Name of what all the programs were measured on; otherwise a platform is a target with its
        hardware parameters and origin.
    networks
        Which file belongs to which network; otherwise its stem names it.
    jobs
        Processes that read; if it is not given, one for few bytes, otherwise one a core.
    replace
        Whether a data set may be replaced: one of other logs, or a damaged one of the same.
    part_rows
        Rows after which a part is written, from which a stopped import can go on.

    Raises
    ------
    RecordsError
        If there are no logs or no rows in them, or ``out`` holds something else.
    """
    logs, others = find_logs(paths, out)
    networks = networks or NetworkMap()
    networks.check(log.stem for log in logs)
    identity = _identity(logs, platform, networks)
    _check(out, identity, replace)
    with full_disk_reported(out), _locked(out):
        current = _current(out, replace)
        if current is not None and current["identity"] == identity and not replace:
            return Imported(out, current, True, False, tuple(others))
        kept = None if current is None else out / current["parts"]
        parts = out / f"parts-{identity}"
        if parts == kept:
            parts = out / f"parts-{identity}-again"
        for left in out.glob("parts-*"):
            if left not in (parts, kept):
                shutil.rmtree(left)
        run = _Import(logs, parts, platform, networks, part_rows)
        resumed = run.writer.progress.parts > 0
        try:
            run.read(jobs or _fitting_jobs(logs), on_progress)
            manifest = run.manifest(identity)
            if manifest["rows"] == 0:
                reason = _nothing(logs, manifest, parts)
                shutil.rmtree(parts)
                raise RecordsError(reason)
            manifest["encoding"] = run.writer.encoding().to_json()
        finally:
            run.writer.close()
        commit(out, parts, manifest)
    return Imported(out, manifest, False, resumed, tuple(others))


def _fitting_jobs(logs: Sequence[LogFile]) -> int:
    return len(available_cores()) if sum(log.size for log in logs) > _LITTLE else 1


def _identity(logs: Sequence[LogFile], platform: str | None, networks: NetworkMap) -> str:
    """Digits that name files as they are and options: an import of the same can be resumed."""
    files = []
    for log in logs:
        for path in filter(None, (log.path, log.workloads)):
            stat = path.stat()
            files.append((log.name, str(path), stat.st_size, stat.st_mtime_ns))
    text = json.dumps([VERSION, VOCABULARY_VERSION, files, platform, networks.to_json()])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check(out: Path, identity: str, replace: bool) -> None:
    if out.exists() and not out.is_dir():
        raise RecordsError(f"{out} is a file; name a folder with --out")
    if not out.exists():
        return
    if (out / MANIFEST).exists():
        if not replace and read_manifest(out)["identity"] != identity:
            raise RecordsError(
                f"{out} is a data set of other logs or options (or the logs changed); name another "
                "folder with --out, or give --replace"
            )
    elif any(not _ours(entry) for entry in out.iterdir()):
        raise RecordsError(f"{out} holds other files; name a new folder with --out")


def _ours(entry: Path) -> bool:
    return entry.name.startswith("parts-") or entry.name in (".lock", "splits")


def _current(out: Path, replace: bool) -> dict[str, Any] | None:
    """The manifest of the data set that is there; None for a damaged one that may be replaced."""
    if not (out / MANIFEST).exists():
        return None
    try:
        return read_manifest(out)
    except RecordsError:
        # Parts beside it say that it was ours.
        if replace and any(out.glob("parts-*")):
            return None
        raise


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            # This kind of lock is not inherited: readers may outlive a killed import for a moment.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise RecordsError(f"another import writes to {out}; wait for its end") from None
        yield


def _nothing(logs: Sequence[LogFile], manifest: dict[str, Any], parts: Path) -> str:
    if any(source["counts"]["autotvm"] for source in manifest["sources"]):
        return f"{logs[0].name}: {AUTOTVM}"
    with (parts / "rejected.jsonl").open() as stream:
        first = stream.readline()
    if not first:
        return f"there is no record in {', '.join(log.name for log in logs[:5])}"
    entry = json.loads(first)
    return (
        f"no line is a record of Ansor or MetaSchedule; {entry['file']}, line {entry['line']}: "
        f"{entry['reason']}"
    )


class _Import:
    """One pass over the files, from where the parts on disk end."""

    def __init__(
        self,
        logs: list[LogFile],
        parts: Path,
        platform: str | None,
        networks: NetworkMap,
        part_rows: int,
    ) -> None:
        self.logs = logs
        self.parts = parts
        self._platform = platform
        self._networks = networks
        self._sizes = [log.size for log in logs]
        self.writer = Writer(parts, self._describe, part_rows)

    def _describe(self, source: int, info: TaskInfo) -> dict[str, Any]:
        log = self.logs[source]
        network = self._networks.network(log.stem)
        named = " | ".join(filter(None, (info.target.strip(), info.hardware, log.origin)))
        return {
            "framework": info.framework.value,
            "version": info.version,
            "file": log.name,
            "origin": log.origin,
            "network": network,
            "weight": self._networks.weight(network, info.workload),
            "platform": self._platform or named,
            "target": info.target,
            "hardware": info.hardware or None,
            "workload": info.workload,
            "arguments": info.arguments or None,
            "flops": info.flops,
            "layout": info.layout or None,
            "host": None,
        }

    def read(self, jobs: int, on_progress: OnProgress | None) -> None:
        """Read what is left, and write it."""
        lines = sum(counts.lines for counts in self.writer.progress.counts)
        rows = self.writer.progress.rows
        items = self._items()
        for item, batch in read_here(items) if jobs <= 1 else read_elsewhere(items, jobs):
            if batch is None:
                self._begin(item)
                continue
            assert item.block is not None
            then = (item.source, item.block.end, item.block.first + item.block.lines)
            if item.block.damage:
                then = (item.source + 1, 0, 1)
            name = self.logs[item.source].name
            self.writer.add(item.source, name, batch, item.block.lines, then)
            lines += item.block.lines
            rows += len(batch.lines)
            if on_progress is not None:
                total = sum(self._sizes) or 1
                on_progress((sum(self._sizes[: item.source]) + item.read) / total, lines, rows)
        self.writer.flush()

    def _items(self) -> Iterator[Item]:
        progress = self.writer.progress
        first, offset, line = progress.source, progress.offset, progress.line
        for source in range(first, len(self.logs)):
            log = self.logs[source]
            found = read_workloads(log.workloads) if log.workloads is not None else None
            begins = source > first or offset == 0
            if begins:
                yield Item(source, None, 0, found, log.name)
            where = (0, 1) if begins else (offset, line)
            for block, read in read_blocks(log.path, *where):
                yield Item(source, block, read, found, log.name)

    def _begin(self, item: Item) -> None:
        counts, found = self.writer.counts(item.source), item.workloads
        if found is None:
            return
        path = self.logs[item.source].workloads
        assert path is not None
        counts.workload_lines += found.lines
        counts.workloads_blank += found.blank
        counts.workloads_rejected += len(found.rejected)
        counts.workloads += len(found.workloads) - len(found.rejected)
        name = str(Path(item.name).with_name(path.name))
        for number, reason in found.rejected:
            self.writer.reject(name, number, reason)

    def manifest(self, identity: str) -> dict[str, Any]:
        """Counts of everything; checks that no line is missing.

        Raises
        ------
        MeasureError
            If lines are not accounted for.
        """
        progress = self.writer.progress
        sources = []
        every: list[dict[str, int]] = []
        for number, log in enumerate(self.logs):
            counts = self.writer.counts(number)
            if not counts.balanced:
                raise MeasureError(f"{log.name}: lines are not accounted for: {asdict(counts)}")
            every.append(asdict(counts))
            sources.append(
                {
                    "file": log.name,
                    "origin": log.origin,
                    "network": self._networks.network(log.stem),
                    "bytes": self._sizes[number],
                    "sha256": digest(log.path),
                    "counts": every[-1],
                }
            )
        text = json.dumps([VERSION, VOCABULARY_VERSION, self._platform, sources], sort_keys=True)
        total = {item.name: sum(one[item.name] for one in every) for item in fields(Counts)}
        return {
            "vocabulary": VOCABULARY_VERSION,
            "identity": identity,
            "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16],
            "rows": progress.rows,
            "primitives": progress.primitives,
            "tasks": progress.tasks,
            "occurrences": progress.values,
            "number_of_parts": progress.parts,
            "platform": self._platform,
            "counts": total,
            "sources": sources,
        }
