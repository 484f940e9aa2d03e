"""From the prepared module and a database to a compiled network, and back from disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp.errors import WorkDirError
from tlp.metaschedule.build import export
from tlp.metaschedule.database import RECORDS, WORKLOADS
from tlp.metaschedule.devices import device_of_library
from tlp.metaschedule.imports import load_tvm

Array = npt.NDArray[Any]


def compile_network(
    mod: Any,
    target: dict[str, Any],
    library: Path,
    database: Path | None,
    weight_layouts: bool,
    progress: Callable[[str], None] = lambda text: None,
    cc: str | None = None,
) -> None:
    """Apply a database to the prepared module, build it and write it.

    Folding the constants runs kernels: call it in a process of its own.

    Parameters
    ----------
    library
        ``.so`` for a linked library, ``.tar`` for objects that another machine links.
    database
        Folder of a MetaSchedule JSON database; None builds the unscheduled network (for a GPU
        TVM's pipeline gives it default schedules).
    weight_layouts
        The module was prepared with layout-free weights: lay them out for the chosen programs.
    cc
        Cross compiler that links; this machine's by default.
    """
    tvm = load_tvm()
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    described = tvm.target.Target(target)
    with described:
        if database is not None:
            progress("applying the best records")
            records = ms.database.JSONDatabase(
                str(database / WORKLOADS), str(database / RECORDS), allow_missing=False
            )
            with records:
                mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(mod)
            if weight_layouts:
                progress("laying out the weights")
                mod = relax.transform.SplitLayoutRewritePreproc()(mod)
                mod = relax.transform.FoldConstant()(mod)
        progress("compiling the network")
        executable = relax.build(mod, target=described)
        progress("linking")
        temporary = library.with_name(f".{os.getpid()}.{library.name}")
        try:
            export(executable, temporary, cc)
            temporary.replace(library)
        finally:
            temporary.unlink(missing_ok=True)


class CompiledNetwork:
    """A tuned network, loaded and ready to run.

    Parameters
    ----------
    library
        Shared library as :func:`compile_network` writes it.

    Examples
    --------
    >>> network = tlp.load("runs/mine")  # doctest: +SKIP
    >>> outputs = network(image)  # doctest: +SKIP
    """

    def __init__(self, library: Path) -> None:
        tvm = load_tvm()
        from tvm import relax

        if not library.exists():
            raise WorkDirError(
                f"{library} does not exist: the folder holds no compiled network yet. "
                "Run 'tlp tune' on it until it ends"
            )
        self._tvm = tvm
        self.library = library
        loaded = tvm.runtime.load_module(str(library))
        self._device = device_of_library(loaded)
        self._machine = relax.VirtualMachine(loaded, self._device, memory_cfg="naive")
        self._main = self._machine["main"]

    def __call__(self, *inputs: Any) -> list[Array]:
        """Run the network on NumPy arrays (or anything that ``np.asarray`` takes)."""
        result = self._main(*self._on_device(inputs))
        outputs = [result] if hasattr(result, "numpy") else list(result)
        return [output.numpy() for output in outputs]

    def time(self, *inputs: Any, repeats: int = 10) -> list[float]:
        """Seconds of each of ``repeats`` calls, without copying inputs or outputs."""
        tensors = self._on_device(inputs)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self._main(*tensors)
            self._device.sync()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def _on_device(self, inputs: Sequence[Any]) -> list[Any]:
        arrays = [np.ascontiguousarray(value) for value in inputs]
        return [self._tvm.runtime.tensor(array, self._device) for array in arrays]
