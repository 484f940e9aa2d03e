"""The work folder: what lies where, who may use it, and whether it fits."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlp.errors import WorkDirError


@dataclass(frozen=True)
class WorkDir:
    """Paths of a work folder (docs/architecture.md lists their contents)."""

    root: Path

    @property
    def config(self) -> Path:
        """Settings the folder was made with, JSON."""
        return self.root / "used_config.json"

    @property
    def prepared(self) -> Path:
        """Prepared module and reference outputs."""
        return self.root / "network"

    @property
    def store(self) -> Path:
        """Every candidate, SQLite."""
        return self.root / "state.sqlite"

    @property
    def database(self) -> Path:
        """MetaSchedule JSON database of the verified best programs."""
        return self.root / "database"

    @property
    def library(self) -> Path:
        """The tuned network."""
        return self.root / "network.so"

    @property
    def untuned(self) -> Path:
        """The unscheduled network, for comparison."""
        return self.root / "untuned.so"

    @property
    def trials(self) -> Path:
        """One line a candidate, CSV."""
        return self.root / "trials.csv"

    @property
    def summary(self) -> Path:
        """Result of the last complete run, JSON."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """What the run did, as a page with plots."""
        return self.root / "report.html"

    @property
    def references(self) -> Path:
        """Outputs of the unscheduled workloads."""
        return self.root / "references"

    @property
    def logs(self) -> Path:
        """What children and TVM print."""
        return self.root / "logs"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises
        ------
        WorkDirError
            If another process holds it, or it cannot be made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise WorkDirError(
                f"cannot use {self.root} as work folder: {error}; choose another --work-dir"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WorkDirError(
                f"{self.root} is in use by another tlp process; wait for it, stop it, or choose "
                "another --work-dir"
            ) from None
        else:
            yield
        finally:
            os.close(descriptor)

    def read_config(self) -> dict[str, Any] | None:
        """The settings the folder was made with, or None for a new folder."""
        if not self.config.exists():
            return None
        try:
            config = json.loads(self.config.read_text())
        except (OSError, ValueError) as error:
            raise WorkDirError(
                f"{self.config} cannot be read ({error}); use another --work-dir"
            ) from None
        if not isinstance(config, dict):
            raise WorkDirError(f"{self.config} holds no JSON object; use another --work-dir")
        return config

    def claim(self, identity: dict[str, Any], config: dict[str, Any]) -> None:
        """Write the settings of a new folder, or check that an old one is of the same run.

        Parameters
        ----------
        identity
            What must not change between runs in one folder: network, target, layouts.
        config
            Everything, as it is written down.
        """
        known = self.read_config()
        if known is not None:
            for name, value in identity.items():
                was = known.get("identity", {}).get(name)
                if was != json.loads(json.dumps(value)):
                    raise WorkDirError(
                        f"{self.root} belongs to another run: its {name} is {was}, "
                        f"this run's is {value}. Use another --work-dir, or repeat the "
                        "command that made the folder"
                    )
        write_json(self.config, {"identity": identity, **config})


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2, default=str) + "\n")
    temporary.replace(path)
