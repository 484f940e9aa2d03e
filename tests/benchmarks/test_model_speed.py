"""The benchmark of models times what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from training import made

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.model_speed import Network, Trees


def test_both_forms_of_the_published_model_score_and_learn_alike():
    data = made.programs(3, 20)
    plain, table = (Network("tlp-published", data, form, 0) for form in (True, False))
    rows = np.arange(5, 40)
    torch.testing.assert_close(plain.scores(rows), table.scores(rows), rtol=1e-4, atol=1e-4)
    before = table.scores(rows)
    for network in (plain, table):
        assert network.train(1e-9) > 0
        assert network.score(1e-9) > 0
    assert not torch.allclose(table.scores(rows), before)
    torch.testing.assert_close(plain.scores(rows), table.scores(rows), rtol=1e-2, atol=1e-2)


def test_trees_are_grown_and_scored():
    trees = Trees(made.programs(3, 40), rounds=3, seed=0)
    assert trees.train(0) > 0
    assert trees.score(1e-9) > 0
    assert trees.ranker.kept == "3 rounds"
