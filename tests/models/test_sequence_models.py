"""Sequence models: published sizes, plain and table forms, padding and batching."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tlp.errors import ModelError
from tlp.models.config import ARCHITECTURES, PUBLISHED, SequenceConfig, architecture
from tlp.models.scoring import score_sequences
from tlp.models.sequence import SequenceModel

WIDTH, LENGTH = 5, 7
SMALL = {
    name: architecture(
        name, width=8, encoder=(6,), decoder=(4,), **({} if "lstm" in name else {"heads": 2})
    )
    for name in ARCHITECTURES
} | {
    "mean": architecture("tlp", width=8, encoder=(6,), decoder=(), pool="mean", layers=2),
    "sum": architecture("tlp", width=8, encoder=(), decoder=(4,), pool="positions", norm=False),
    "unmasked": architecture("tlp", width=8, encoder=(6,), decoder=(4,), masked=False),
}


def made(seed=0, count=9, distinct=12, length=LENGTH):
    """A table, and sequences of every length with rubbish where they are padded."""
    rng = np.random.default_rng(seed)
    table = torch.tensor(rng.normal(size=(distinct, WIDTH)) * 3, dtype=torch.float32)
    lengths = np.arange(count) % (length + 1)
    mask = torch.tensor(np.arange(length) < lengths[:, None])
    indices = torch.tensor(rng.integers(distinct, size=(count, length)))
    return table, indices, mask


def model_of(name, seed=0):
    model = SequenceModel(SMALL[name], WIDTH, LENGTH, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():  # biases, too, so that padding matters
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


class PublishedTlp(nn.Module):
    """TLP as the paper draws it, from torch's own parts."""

    def __init__(self, features):
        super().__init__()
        sizes = [features, 64, 128, 256, 256]
        self.up = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.attention = nn.MultiheadAttention(256, 8, batch_first=True)
        self.residual = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        sizes = [256, 256, 128, 64, 1]
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x):
        for layer in self.up:
            x = layer(x).relu()
        x = x + self.attention(x, x, x)[0]
        for layer in self.residual:
            x = x + layer(x).relu()
        for layer in self.down[:-1]:
            x = layer(x).relu()
        return self.down[-1](x).sum((1, 2))


def test_published_tlp_has_the_parameters_of_the_paper():
    model = SequenceModel(PUBLISHED, 22, 25)
    encoder = 22 * 64 + 64 + 64 * 128 + 128 + 128 * 256 + 256 + 256 * 256 + 256
    attention = 4 * (256 * 256 + 256)
    residual = 2 * (256 * 256 + 256)
    decoder = 256 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 * 1 + 1
    assert sum(p.numel() for p in model.parameters()) == encoder + attention + residual + decoder
    assert encoder + attention + residual + decoder == 610_369
    sizes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert (64, 128) in sizes
    assert sizes[-4:] == [(256, 256), (256, 128), (128, 64), (64, 1)]


def test_published_tlp_scores_as_a_network_of_torchs_own_parts():
    torch.manual_seed(3)
    reference = PublishedTlp(WIDTH).eval()
    ours = SequenceModel(PUBLISHED, WIDTH, LENGTH)
    names = {
        "encoder.": [(f"{2 * i}.", f"up.{i}.") for i in range(4)],
        "decoder.": [(f"{2 * i}.", f"down.{i}.") for i in range(4)],
        "blocks.": [(f"{i}.0.", f"residual.{i}.") for i in range(2)],
        "mixer.outputs.": [("0.", "attention.out_proj.")],
    }
    weights = reference.state_dict()
    moved = {
        f"{part}{mine}{kind}": weights[f"{theirs}{kind}"]
        for part, pairs in names.items()
        for mine, theirs in pairs
        for kind in ("weight", "bias")
    }
    moved["mixer.inputs.0.weight"] = weights["attention.in_proj_weight"]
    moved["mixer.inputs.0.bias"] = weights["attention.in_proj_bias"]
    ours.load_state_dict(moved)
    table, indices, mask = made()
    x = table[indices] * mask[..., None]
    torch.testing.assert_close(ours.plain(x, mask), reference(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(table, indices, mask), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_the_table_form_equals_the_plain_form_and_so_do_gradients(name):
    model = model_of(name)
    table, indices, mask = made()
    gradients = []
    for scores in (model(table, indices, mask), model.plain(table[indices], mask)):
        model.zero_grad()
        scores.square().sum().backward()
        gradients.append({k: p.grad.clone() for k, p in model.named_parameters()})
        if len(gradients) == 1:
            first = scores
        else:
            torch.testing.assert_close(first, scores, rtol=1e-4, atol=1e-5)
    for key, value in gradients[0].items():
        torch.testing.assert_close(value, gradients[1][key], rtol=1e-3, atol=1e-4)
    assert len(torch.unique(first.detach().round(decimals=4))) > 3


@pytest.mark.parametrize("name", SMALL)
def test_rubbish_in_padding_never_reaches_a_score_or_a_gradient(name):
    model = model_of(name)
    table, indices, mask = made()
    clean = model(table, indices, mask)
    rubbish = torch.cat([table, torch.full((1, WIDTH), torch.nan)])
    assert torch.equal(model(table, indices.masked_fill(~mask, 3), mask), clean)
    x = rubbish[indices.masked_fill(~mask, len(table))]
    assert x.isnan().any()
    scores = model.plain(x, mask)
    torch.testing.assert_close(scores, clean, rtol=1e-4, atol=1e-5)
    scores.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", [n for n in SMALL if SMALL[n].masked])
def test_masked_models_do_not_see_how_long_the_padding_is(name):
    model = model_of(name)
    table, indices, mask = made(count=5)  # lengths from 0 to 4
    whole = model(table, indices, mask)
    torch.testing.assert_close(model(table, indices[:, :4], mask[:, :4]), whole)
    added = torch.zeros(5, 4, WIDTH), torch.zeros(5, 4, dtype=torch.bool)
    if SMALL[name].positions:
        return
    longer = model.plain(torch.cat([table[indices], added[0]], 1), torch.cat([mask, added[1]], 1))
    torch.testing.assert_close(longer, whole, rtol=1e-4, atol=1e-5)


def test_an_unmasked_model_reads_padding_as_primitives_of_zeros():
    model = model_of("tlp-published")
    table, indices, mask = made()
    zeros = torch.cat([table, torch.zeros(1, WIDTH)])
    full = torch.ones_like(mask)
    torch.testing.assert_close(
        model(zeros, indices.masked_fill(~mask, len(table)), full), model(table, indices, mask)
    )


@pytest.mark.parametrize("name", ["tlp", "lstm", "transformer"])
def test_only_models_with_positions_or_states_see_the_order(name):
    table, indices, _ = made()
    full = torch.ones_like(indices, dtype=torch.bool)
    turned = indices.flip(1)
    model = model_of(name)
    assert not torch.allclose(model(table, indices, full), model(table, turned, full), atol=1e-3)
    if name == "lstm":
        return
    blind = SequenceModel(architecture(name, width=8, heads=2, positions=False), WIDTH, LENGTH)
    blind.eval()
    torch.testing.assert_close(
        blind(table, indices, full), blind(table, turned, full), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", SMALL)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 12))
@settings(max_examples=8, deadline=None)
def test_order_and_batches_change_no_score(name, seed, batch):
    model = model_of(name)
    table, indices, mask = (values.numpy() for values in made(seed, count=17))
    whole = score_sequences(model, table, indices, mask)
    with torch.no_grad():
        wanted = model(*(torch.from_numpy(values) for values in (table, indices, mask)))
    np.testing.assert_allclose(whole, wanted.numpy(), rtol=1e-4, atol=1e-5)
    order = np.random.default_rng(seed).permutation(17)
    again = score_sequences(model, table, indices[order].astype(np.int32), mask[order], batch)
    np.testing.assert_allclose(again, whole[order], rtol=1e-4, atol=1e-5)


def test_scoring_takes_nothing_and_empty_sequences_and_leaves_the_mode():
    model = model_of("tlp").train()
    table, indices, mask = (values.numpy() for values in made())
    assert score_sequences(model, table, indices[:0], mask[:0]).shape == (0,)
    empty = score_sequences(model, table[:0], indices[:2] * 0, mask[:2] * False)
    assert np.isfinite(empty).all()
    assert empty[0] == empty[1]
    assert model.training


def test_log2_keeps_ones_and_zeros_and_signs():
    seen = []
    model = SequenceModel(architecture("tlp", width=4, heads=1), 4, 3)
    model.encoder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model.encode(torch.tensor([[0.0, 1.0, -7.0, 1023.0]]))
    assert seen[0].tolist() == [[0.0, 1.0, -3.0, 10.0]]


def test_the_first_weights_follow_the_seed_and_leave_torchs_generator_alone():
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    one, two, other = (SequenceModel(SMALL["tlp"], WIDTH, LENGTH, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(3), wanted)
    for key, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[key])
    assert not torch.equal(one.encoder[0].weight, other.encoder[0].weight)


def test_gradients_are_those_of_finite_differences():
    model = model_of("tlp").double()
    table, indices, mask = made(count=4)
    table = table.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: model(rows, indices, mask), (table,))
    assert torch.autograd.gradcheck(
        lambda value: torch.func.functional_call(
            model, {"positions": value}, (table.detach(), indices, mask)
        ),
        (model.positions.detach().clone().requires_grad_(),),
    )


@pytest.mark.parametrize("name", ["tlp", "transformer"])
def test_masked_attention_is_that_of_loops(name):
    """Positions that are padded get no weight: the same as a sequence cut to its length."""
    model = model_of(name)
    table, indices, mask = made(count=8)
    for row in range(1, 8):
        length = int(mask[row].sum())
        alone = model.plain(table[indices[row : row + 1, :length]], mask[row : row + 1, :length])
        together = model(table, indices, mask)[row]
        assert alone.item() == pytest.approx(together.item(), rel=1e-4, abs=1e-5)


def test_a_config_comes_back_from_json_and_mistakes_are_named():
    config = architecture("tlp", encoder=(3, 4), pool="mean")
    assert SequenceConfig.from_json(config.to_json()) == config
    with pytest.raises(ModelError, match="blocks"):
        SequenceConfig.from_json({k: v for k, v in config.to_json().items() if k != "blocks"})
    for changes, says in (
        ({"heads": 7}, "7 heads do not divide the width 64"),
        ({"mixer": "mamba"}, "mixer is one of attention, lstm, transformer"),
        ({"width": 0}, "positive"),
        ({"wdith": 3}, "unknown fields wdith; there are blocks"),
    ):
        with pytest.raises(ModelError, match=says):
            architecture("tlp", **changes)
    with pytest.raises(ModelError, match="there are tlp, tlp-published"):
        architecture("tpl")


def test_the_table_form_computes_each_distinct_primitive_once():
    model = model_of("tlp-published")
    table, indices, mask = made(count=50)
    rows = []
    model.encoder[0].register_forward_hook(
        lambda module, inputs, output: rows.append(math.prod(output.shape[:-1]))
    )
    model(table, indices, mask)
    model.plain(table[indices], mask)
    assert rows == [len(table) + 1, 50 * LENGTH]
