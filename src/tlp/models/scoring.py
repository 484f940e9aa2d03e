"""Scores of many sequences, in batches and without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tlp.models.sequence import SequenceModel


def score_sequences(
    model: SequenceModel,
    table: npt.NDArray[np.float32],
    indices: npt.NDArray[np.integer[Any]],
    mask: npt.NDArray[np.bool_],
    batch: int = 512,
) -> npt.NDArray[np.float32]:
    """Scores ``float32 [n]`` of sequences, on the device where the model is.

    Every primitive that occurs is encoded once. A model that leaves padding out gets sequences of
    like length together, cut to the longest of them.

    Parameters
    ----------
    table, indices, mask
        ``[d, w]``, ``[n, L]``, ``[n, L]`` as in `SequenceModel`.
    batch
        Sequences at a time. More are slower on a CPU: their memory is new each time.
    """
    device = next(model.parameters()).device
    scores = np.zeros(len(indices), np.float32)
    if not len(indices):
        return scores
    occurs = np.zeros(len(table), bool)
    occurs[indices[mask]] = True
    number = np.cumsum(occurs, dtype=np.int64) - 1
    longest = np.where(mask, np.arange(1, mask.shape[1] + 1), 0).max(-1, initial=0)
    order = np.argsort(longest, kind="stable") if model.config.masked else np.arange(len(indices))
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            encoded = model.encode_table(
                torch.from_numpy(table[occurs].astype(np.float32)).to(device)
            )
            for start in range(0, len(order), batch):
                rows = order[start : start + batch]
                length = int(longest[rows[-1]]) if model.config.masked else mask.shape[1]
                length = max(1, length)
                seen = mask[rows, :length]
                found = (
                    number[np.where(seen, indices[rows, :length], 0)] if len(table) else seen * 0
                )
                got = model.score_encoded(
                    encoded,
                    torch.from_numpy(np.ascontiguousarray(found, np.int64)).to(device),
                    torch.from_numpy(np.ascontiguousarray(seen)).to(device),
                )
                scores[rows] = got.float().cpu().numpy()
    finally:
        model.train(training)
    return scores
