"""Whole networks on a device: trying it out, checking outputs, comparing latencies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tlp.errors import DeviceError, MeasureError
from tlp.measuring.compare import output_error, repeats_for
from tlp.measuring.place import ENTRY, ExpiredError, Say, UnreachedError
from tlp.measuring.remote import Packed, RemotePlace, load
from tlp.metaschedule.arguments import Array
from tlp.networks.prepare import load_reference

_ROUNDS = 7
_ATTEMPTS = 3
_SESSION_SECONDS = 600.0
_TRIAL_SECONDS = 60.0

Progress = Callable[[str], None]


class RemoteNetwork:
    """A compiled network on a device; called like :class:`CompiledNetwork`, NumPy in and out."""

    def __init__(self, session: Any, library: Path) -> None:
        from tvm import relax

        self._device = session.cpu(0)
        loaded = load(session, Packed(library.name, library.read_bytes()))
        self._machine = relax.VirtualMachine(loaded, self._device, memory_cfg="naive")

    def _set(self, inputs: tuple[Any, ...]) -> None:
        import tvm

        tensors = [tvm.runtime.tensor(np.ascontiguousarray(v), self._device) for v in inputs]
        self._machine.set_input(ENTRY, *tensors)

    def __call__(self, *inputs: Any) -> list[Array]:
        """Run the network once."""
        self._set(inputs)
        self._machine.invoke_stateful(ENTRY)
        result = self._machine.get_outputs(ENTRY)
        outputs = [result] if hasattr(result, "numpy") else list(result)
        return [output.numpy() for output in outputs]

    def time(self, *inputs: Any, repeats: int = 10) -> list[float]:
        """Seconds of each of ``repeats`` calls by the device's own clock."""
        self._set(inputs)
        evaluator = self._machine.time_evaluator(
            "invoke_stateful", self._device, number=1, repeat=repeats
        )
        return [float(value) for value in evaluator(ENTRY).results]


def _saying(progress: Progress) -> Say:
    def say(waiting: str, seconds: float) -> None:
        if waiting:
            progress(waiting)

    return say


def _with_devices(run: Callable[[], Any], progress: Progress) -> Any:
    """Run something in a session; if its device is lost, on another."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return run()
        except UnreachedError as error:
            if attempt == _ATTEMPTS:
                raise MeasureError(
                    f"{_ATTEMPTS} devices in a row were lost; the last: {error}. Everything "
                    "measured is kept: look after the devices and repeat the command"
                ) from None
            progress(f"{error}; asking for another")
    return None


def try_device(place: RemotePlace, target: dict[str, Any], progress: Progress) -> None:
    """Run a small program on a device, so that a wrong target is known at once; kernels run.

    Raises
    ------
    DeviceError
        If the program cannot be compiled, linked, loaded or run, or its result is wrong.
    """
    import tvm

    given = tvm.te.placeholder((64,), name="given")
    doubled = tvm.te.compute((64,), lambda i: given[i] * 2.0, name="doubled")
    function = tvm.te.create_prim_func([given, doubled]).with_attr("global_symbol", ENTRY)
    values = np.arange(64, dtype=np.float32)

    def run() -> Array:
        library = tvm.tirx.build(tvm.IRModule({ENTRY: function}), target=tvm.target.Target(target))
        with place.open(place.finish(library), _TRIAL_SECONDS, _saying(progress)) as there:
            buffers = [there.tensor(values), there.tensor(np.zeros_like(values))]
            there.call(buffers)
            result: Array = buffers[1].numpy()
            return result

    way_out = (
        "; check -mtriple and -mcpu of --target against the device. The device links programs "
        "itself and needs a C++ compiler for it (g++), or give --rpc-cc to link here"
    )
    try:
        result = _with_devices(run, progress)
    except (DeviceError, MeasureError) as error:
        raise type(error)(f"{error}{way_out if 'lost' in str(error) else ''}") from None
    except Exception as error:
        raise DeviceError(f"a device cannot run a trial program: {error}{way_out}") from None
    if not np.array_equal(result, 2 * values):
        raise DeviceError(f"a device computes a trial program wrongly{way_out}")


def compare_there(
    place: RemotePlace,
    prepared: Path,
    libraries: Mapping[str, Path],
    linked: Path,
    progress: Progress,
) -> tuple[float, dict[str, list[float]]]:
    """Check the tuned network on a device and time it against the others there.

    Parameters
    ----------
    libraries
        What was compiled, by name; ``tuned`` among them.
    linked
        File that gets the tuned network as the device links it.

    Returns
    -------
    error, seconds
        As :func:`output_error` and :func:`alternate` give them. A network that the device does
        not finish in ten minutes is left out, unless it is the tuned one.
    """
    inputs = load_reference(prepared).x1
    names = list(libraries)

    def run() -> tuple[float, dict[str, list[float]]]:
        with place.session(_SESSION_SECONDS, _saying(progress)) as session:
            networks = {"tuned": RemoteNetwork(session, libraries["tuned"])}
            if libraries["tuned"].suffix == ".tar":
                linked.write_bytes(session.download_linked_module(libraries["tuned"].name))
            progress("checking the output")
            error = output_error(networks["tuned"], load_reference(prepared))
            networks |= {n: RemoteNetwork(session, libraries[n]) for n in names if n != "tuned"}
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for number in range(_ROUNDS):
                progress(f"timing on a device, round {number + 1} of {_ROUNDS}")
                for name in names:
                    known = seconds[name]
                    repeats = repeats_for(statistics.median(known)) if known else 1
                    known += networks[name].time(*inputs, repeats=repeats)
                    if known[0] > _SESSION_SECONDS / 4 / _ROUNDS / len(names) and number:
                        return error, seconds
            return error, seconds

    while True:
        try:
            answer: tuple[float, dict[str, list[float]]] = _with_devices(run, progress)
            return answer
        except ExpiredError as error:
            if names == ["tuned"]:
                raise MeasureError(
                    f"the tuned network could not be timed: {error}; tune longer, on a larger "
                    "device, or a smaller network"
                ) from None
            names = ["tuned"]


def time_there(
    place: RemotePlace, library: Path, inputs: tuple[Array, ...], repeats: int, progress: Progress
) -> tuple[list[Array], list[float]]:
    """Outputs and seconds of a linked network on a device."""

    def run() -> tuple[list[Array], list[float]]:
        with place.session(_SESSION_SECONDS, _saying(progress)) as session:
            network = RemoteNetwork(session, library)
            outputs = network(*inputs)
            progress("running")
            return outputs, network.time(*inputs, repeats=repeats)

    answer: tuple[list[Array], list[float]] = _with_devices(run, progress)
    return answer
