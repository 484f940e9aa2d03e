"""Splits by workload, with whole networks held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tlp.errors import RecordsError
from tlp.records.dataset import DataSet
from tlp.records.names import find_names
from tlp.tuning.workdir import write_json

FORMAT = "tlp split"
VERSION = 1


@dataclass(frozen=True)
class Split:
    """Workload keys of each side; no key is on two sides.

    Parameters
    ----------
    held_out
        Networks whose workloads, all of them, are in ``test``.
    shared
        Keys in ``test`` that networks use which are not held out.
    """

    held_out: tuple[str, ...]
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    shared: tuple[str, ...]


def split(data: DataSet, hold_out: Sequence[str], valid: float = 0.0, seed: int = 0) -> Split:
    """Hold networks out.

    Parameters
    ----------
    hold_out
        Names of networks; case, ``_`` and ``-`` do not count.
    valid
        Share of the other workloads that is set aside for validation.

    Raises
    ------
    RecordsError
        If a network is unknown, or nothing is left to train on.
    """
    if not 0 <= valid < 1:
        raise RecordsError(f"the share for validation is {valid}; give one from 0 to below 1")
    held = find_names(hold_out, data.networks)
    if not held:
        raise RecordsError("no network is held out; name one with --hold-out")
    test = {key for name in held for key in data.networks[name]}
    others = {key for name, keys in data.networks.items() if name not in held for key in keys}
    left = [key for key in data.workloads if key not in test]
    # By a hash of the key: a workload stays on its side when logs are added.
    chosen = {key for key in left if _share(key, seed) < valid}
    train = tuple(key for key in left if key not in chosen)
    if not train:
        raise RecordsError(
            "nothing is left to train on: the held-out networks use every workload; hold out fewer"
            if not chosen
            else f"nothing is left to train on: validation takes all; give less than {valid}"
        )
    return Split(
        held_out=tuple(held),
        train=train,
        valid=tuple(key for key in left if key in chosen),
        test=tuple(key for key in data.workloads if key in test),
        shared=tuple(key for key in data.workloads if key in test and key in others),
    )


def folds(data: DataSet, count: int, valid: float = 0.0, seed: int = 0) -> list[Split]:
    """Splits that hold every network out once, with about as many workloads in each fold.

    Raises
    ------
    RecordsError
        If there are fewer networks than folds.
    """
    networks = data.networks
    if not 2 <= count <= len(networks):
        raise RecordsError(
            f"{count} folds of {len(networks)} networks: give a number from 2 to {len(networks)}"
        )
    chosen: list[list[str]] = [[] for _ in range(count)]
    keys: list[set[str]] = [set() for _ in range(count)]
    for name in sorted(networks, key=lambda name: (-len(networks[name]), name)):
        smallest = min(range(count), key=lambda fold: (len(keys[fold]), fold))
        chosen[smallest].append(name)
        keys[smallest] |= set(networks[name])
    return [split(data, names, valid, seed) for names in chosen]


def choose(splits: Sequence[Split], fold: int | None, path: Path) -> Split:
    """One of the splits of a file.

    Parameters
    ----------
    fold
        Its number, from 1; not needed where there is one only.

    Raises
    ------
    RecordsError
        If it is not said which, or there is none of that number.
    """
    if fold is None and len(splits) == 1:
        return splits[0]
    if fold is None or fold > len(splits):
        raise RecordsError(f"{path} has {len(splits)} splits: add --fold 1 to {len(splits)}")
    return splits[fold - 1]


def _share(key: str, seed: int) -> float:
    text = f"{seed} {key}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") / 2**64


def save(path: Path, data: DataSet, splits: Sequence[Split]) -> None:
    """Write splits of a data set; the file names every key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": data.fingerprint,
            "splits": [asdict(found) for found in splits],
        },
    )


def load(path: Path, data: DataSet) -> list[Split]:
    """Read splits of a data set.

    Raises
    ------
    RecordsError
        If the file is no split, or one of other data.
    """
    try:
        content = json.loads(path.read_text())
        splits = [
            Split(**{name: tuple(keys) for name, keys in found.items()})
            for found in content["splits"]
        ]
        right = (content["format"], content["version"]) == (FORMAT, VERSION)
        same = content["fingerprint"] == data.fingerprint
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordsError(f"{path} is no split of tlp ({error}); make one: tlp split") from None
    if not right or not same:
        raise RecordsError(f"{path} is not a split of {data.path} as it is now; repeat tlp split")
    return splits
