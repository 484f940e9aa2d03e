"""Training labels of one task."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORST = -4.0  # log2 of the slow-down at which candidates stop being told apart


def labels(latencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log2(best / latency), clipped at -4; failures get -5.

    Examples
    --------
    >>> labels(np.array([1.0, 2.0, np.inf])).tolist()
    [0.0, -1.0, -5.0]
    """
    finite = np.isfinite(latencies)
    result = np.full(len(latencies), _WORST - 1)
    if finite.any():
        best = latencies[finite].min()
        result[finite] = np.maximum(np.log2(best / latencies[finite]), _WORST)
    return result
