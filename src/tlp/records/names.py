"""Names of networks: files' stems, a map from them, and how people write them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlp.errors import RecordsError


def normal(name: str) -> str:
    """A name without what people write differently: ``ResNet-18``, ``resnet_18``, ``resnet18``."""
    return name.lower().replace("_", "").replace("-", "")


def find_names(wanted: Iterable[str], known: Iterable[str], what: str = "network") -> list[str]:
    """Known names for those that somebody wrote.

    Raises
    ------
    RecordsError
        If one is unknown; the message lists the known ones.
    """
    by_form = {normal(name): name for name in sorted(known)}
    found = []
    for name in wanted:
        match = by_form.get(normal(name))
        if match is None:
            close = difflib.get_close_matches(normal(name), by_form, 1)
            hint = f"; did you mean {by_form[close[0]]}?" if close else "."
            listed = ", ".join(by_form.values()) or "none"
            raise RecordsError(f"there is no {what} {name!r}{hint} Known are: {listed}")
        if match not in found:
            found.append(match)
    return found


@dataclass(frozen=True)
class NetworkMap:
    """Which network a file belongs to, and how often that uses its workloads.

    Parameters
    ----------
    names
        Network by a file's stem in its normal form; None says that it belongs to none.
    weights
        Uses by network and workload key.
    """

    names: Mapping[str, str | None] = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> NetworkMap:
        """Read ``{"stem": "network" | null | {"name": ..., "weights": {key: uses}}}``.

        Raises
        ------
        RecordsError
            If the file cannot be read or has another form.
        """
        try:
            content: Any = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecordsError(f"{path}, given with --networks, cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise RecordsError(f"{path} is no JSON object of file stems and networks")
        names: dict[str, str | None] = {}
        weights: dict[str, dict[str, float]] = {}
        for stem, value in content.items():
            described = value if isinstance(value, dict) else {"name": value}
            name, uses = described.get("name"), described.get("weights", {})
            if not isinstance(name, str | None) or not isinstance(uses, dict):
                raise RecordsError(f'{path}: {stem!r} is no name, null or {{"name", "weights"}}')
            for key, number in uses.items():
                if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
                    raise RecordsError(f"{path}: the weight of {key!r} in {stem!r} is not positive")
            names[normal(stem)] = name
            if name is not None:
                weights.setdefault(name, {}).update(uses)
        return cls(names, weights)

    def check(self, stems: Iterable[str]) -> None:
        """Refuse stems that no file has.

        Raises
        ------
        RecordsError
            If there is one; the message lists the files' stems.
        """
        find_names(self.names, stems, "file with the stem")

    def network(self, stem: str) -> str | None:
        """The network of a file: its stem, unless the map says otherwise."""
        return self.names.get(normal(stem), stem)

    def weight(self, network: str | None, workload: str) -> float | None:
        """How often the network uses a workload; None if that is not known."""
        return self.weights.get(network, {}).get(workload) if network is not None else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, to tell one import from another."""
        return {"names": dict(self.names), "weights": {k: dict(v) for k, v in self.weights.items()}}
