"""A loaded network, whatever framework it came from."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tvm

Array = npt.NDArray[Any]
Range = tuple[int, int] | None


@dataclass(frozen=True)
class Network(abc.ABC):
    """A network, ready to run and to import.

    Parameters
    ----------
    name
        Short name.
    inputs
        Example inputs.
    ranges
        For each input, the least and the largest value of its integers; ``None`` for floats and
        booleans.
    """

    name: str
    inputs: tuple[Array, ...]
    ranges: tuple[Range, ...]

    @abc.abstractmethod
    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run the network once in its own framework; its outputs, flat."""

    @abc.abstractmethod
    def to_relax(self) -> tvm.ir.IRModule:
        """Translate the network into a module with one function ``main``, weights as constants.

        Raises
        ------
        NetworkError
            If TVM cannot take an operator; the message names it.
        """


WAY_OUT = (
    "Express it with other operators in a copy of the model, or cut the model around it and tune "
    "the parts"
)
"""What to do about an operator that TVM cannot take."""


def draw(shape: tuple[int, ...], dtype: Any, limits: Range, rng: np.random.Generator) -> Array:
    """Draw one input: standard normal floats, uniform integers within limits, coins."""
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if limits is not None:
        return rng.integers(limits[0], limits[1] + 1, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def random_inputs(network: Network, seed: int) -> tuple[Array, ...]:
    """Draw inputs of the network's shapes and types, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    return tuple(
        draw(example.shape, example.dtype, limits, rng)
        for example, limits in zip(network.inputs, network.ranges, strict=True)
    )
