from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_logs import TRACES, before_postprocessing, handed_files, json_lines, text

from tlp.errors import StepError
from tlp.primitives.ansor import read_step
from tlp.primitives.encoding import Encoder, fit_encoding
from tlp.primitives.metaschedule import read_trace, write_trace
from tlp.primitives.primitive import Primitive
from tlp.primitives.table import PrimitiveTable, ragged

TRACE = [
    [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
        ["Split", ["l1", "v3", "v4"], [True], ["l5", "l6"]],
        ["Split", ["l2", "None", 8], [1, 0], ["l7", "l8"]],
        ["Reorder", ["l5", "l7", "l6", "l8"], [], []],
        ["CacheWrite", ["b0", []], [0, "local"], ["b9"]],
        ["SampleComputeLocation", ["b9"], [], ["l10"]],
        ["ComputeAt", ["b9", "l10"], [1, -1], []],
        ["SampleCategorical", [], [[0, 16, 64], [0.25, 0.25, 0.5]], ["v11"]],
        ["Annotate", ["b0", "v11"], ["meta_schedule.unroll_explicit"], []],
        ["Bind", ["l5"], ["blockIdx.x"], []],
        ["Vectorize", ["l8"], [], []],
        ["NewInSomeVersion", ["b0", 3], ["text", {"a": 1}], ["l12"]],
        ["EnterPostproc", [], [], []],
        ["Unannotate", ["b0"], ["meta_schedule.unroll_explicit"], []],
    ],
    [[3, [16, 4]], [8, 1], [10, 2]],
]

# Kind, numbers, tokens and names of each, by hand: decision, outputs (first and how many),
# inputs, attributes; expression variables are what they were decided to.
EXPECTED = [
    ("get_block", (0, 1), (), ("matmul", "main")),
    ("annotate", (0,), ("SSRSRS", "meta_schedule.tiling_structure"), ()),
    ("get_loops", (1, 2, 0), (), ()),
    ("sample_tile", (16, 4, 1, 2, 64), (), ()),
    ("split", (5, 2, 1, 16, 4, 1), (), ()),
    ("split", (7, 2, 2, 8, 1, 0), (), ()),
    ("reorder", (5, 7, 6, 8), (), ()),
    ("cache_write", (9, 1, 0, 0), ("local",), ()),
    ("sample_compute_location", (1, 10, 1, 9), (), ()),
    ("compute_at", (9, 10, 1, 1, -1), (), ()),
    ("sample_categorical", (2, 64, 0, 16, 64, 0.25, 0.25, 0.5), (), ()),
    ("annotate", (0, 64), ("meta_schedule.unroll_explicit",), ()),
    ("annotate", (5,), ("blockIdx.x",), ()),
    ("annotate", (8,), ("vectorize",), ()),
    ("unknown", (12, 1, 0, 3), (), ("text", '{"a":1}')),
]


def test_a_trace_is_read_up_to_its_postprocessing():
    primitives = read_trace(TRACE)

    assert [(p.kind, p.numbers, p.tokens, p.names) for p in primitives] == EXPECTED
    assert text(write_trace(primitives)) == text(before_postprocessing(TRACE))


def test_a_trace_without_decisions_comes_back_without():
    trace = [TRACE[0], []]
    primitives = read_trace(trace)

    assert primitives[4].numbers == (5, 2, 1, 0, 0, 1)
    assert text(write_trace(primitives)) == text(before_postprocessing(trace))


def _with_change(index, part, value):
    trace = copy.deepcopy(TRACE)
    trace[0][index][part] = value
    return trace


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (None, "a list of instructions and decisions"),
        ([[]], "a list of instructions and decisions"),
        ([{}, []], "instructions"),
        ([[], None], "decisions"),
        ([[["GetLoops", [], []]], []], "kind, inputs, attributes, outputs"),
        ([[[3, [], [], []]], []], "name"),
        (_with_change(2, 1, None), "GetLoops, field inputs"),
        (_with_change(2, 1, ["b7"]), "GetLoops, field inputs: expected a variable that was"),
        (_with_change(2, 3, ["b0"]), "GetLoops, field outputs: expected new variables"),
        (_with_change(2, 3, ["x1"]), "GetLoops, field outputs: expected variables"),
        (_with_change(2, 3, [1]), "GetLoops, field outputs: expected variables"),
        (_with_change(10, 2, []), "SampleCategorical, field attributes"),
        (_with_change(10, 2, [[0, 1], [0.5, 0.5]]), "an index below 2"),
        (_with_change(10, 2, [[0, 1, math.nan], []]), "finite"),
        (_with_change(10, 3, []), "SampleCategorical, field attributes"),
        (_with_change(8, 3, ["b10"]), "loops or expressions"),
        ([TRACE[0], [[3, [16]]]], "a list of 2 factors"),
        ([TRACE[0], [[3, [16, 0.5]]]], "an integer"),
        ([TRACE[0], [[8, [1]]]], "an integer"),
        ([TRACE[0], [[8, None]]], "an integer"),
        ([TRACE[0], [[99, 1]]], "index of an instruction"),
        ([TRACE[0], [[8, 1], [8, 1]]], "index of an instruction"),
        ([TRACE[0], [[True, 1]]], "index of an instruction"),
        ([TRACE[0], [8]], "index of an instruction"),
    ],
)
def test_what_is_malformed_is_named(trace, message):
    with pytest.raises(StepError) as caught:
        read_trace(trace)
    assert message in str(caught.value)


def _encode(*traces, scale="raw"):
    """Arrays of traces in one encoding that holds all of them whole."""
    table = PrimitiveTable()
    flat, offsets = ragged([table.add_all(read_trace(trace)) for trace in traces])
    encoding = fit_encoding(list(table), flat, offsets, coverage=1, scale=scale)
    return Encoder(encoding, list(table)).encode(flat, offsets)


def _renamed_variables(trace):
    """Other numbers for all variables, and one that is not numbered at all."""
    changed = {f"{c}{n}": f"{c}{n + 40}" for c in "blv" for n in range(300)} | {"b0": "b_root"}

    def walk(value):
        if isinstance(value, list):
            return [walk(item) for item in value]
        return changed.get(value, value) if isinstance(value, str) else value

    return [walk(trace[0]), trace[1]]


@pytest.mark.parametrize("trace", [TRACE, *TRACES])
def test_variables_are_numbered_by_first_appearance_whatever_their_text(trace):
    renamed = _renamed_variables(trace)
    (original, same), mask = _encode(trace, renamed)

    assert mask.all()
    np.testing.assert_array_equal(original, same)
    assert text(write_trace(read_trace(renamed))) == text(before_postprocessing(renamed))


@pytest.mark.parametrize("trace", TRACES)
def test_names_of_blocks_are_no_features(trace):
    renamed = copy.deepcopy(trace)
    blocks = 0
    for instruction in renamed[0]:
        if instruction[0] in ("GetBlock", "GetSBlock"):
            instruction[2] = ["another_name", "function"]
            blocks += 1
    (original, same), _ = _encode(trace, renamed)

    assert blocks > 0
    np.testing.assert_array_equal(original, same)


@pytest.mark.parametrize("trace", TRACES)
def test_every_decision_changes_the_features(trace):
    trace = before_postprocessing(trace)
    changed = []
    for place, (index, decision) in enumerate(trace[1]):
        other = copy.deepcopy(trace)
        other[1][place][1] = (
            [factor + 1 for factor in decision] if isinstance(decision, list) else decision + 1
        )
        candidates = trace[0][index][2][:1]
        if trace[0][index][0] == "SampleCategorical":
            other[1][place][1] = (decision + 1) % len(candidates[0])
        changed.append(other)
    arrays, _ = _encode(trace, *changed)

    assert len(np.unique(arrays.reshape(len(arrays), -1), axis=0)) == 1 + len(changed)


def test_ansor_and_metaschedule_share_kinds_and_tokens():
    vectorize, bind = read_trace(TRACE)[13], read_trace(TRACE)[12]
    ansor = [read_step(["AN", 1, 0, 2]), read_step(["AN", 1, 0, 5])]

    assert [(p.kind, p.tokens) for p in (vectorize, bind)] == [(p.kind, p.tokens) for p in ansor]


def test_primitives_are_stored_as_plain_rows():
    for trace in [TRACE, _renamed_variables(TRACE), *TRACES]:
        primitives = read_trace(trace)
        again = tuple(Primitive.from_row(primitive.to_row()) for primitive in primitives)
        assert again == primitives
        assert text(write_trace(again)) == text(before_postprocessing(trace))


def test_primitives_of_ansor_are_refused():
    with pytest.raises(StepError, match="framework"):
        write_trace([read_step(["CI", 1])])
    with pytest.raises(StepError, match="form"):
        write_trace([Primitive(**{**read_trace(TRACE)[6].__dict__, "form": "llll"})])


def _places(value, path=()):
    yield path
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, (*path, index))


_SOURCES = [TRACE, *TRACES]
_PLACES = [list(_places(trace)) for trace in _SOURCES]
_odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([2**53, 2**60, -(2**70), 10**400]),
    st.floats(),
    st.sampled_from(
        ["b0", "l1", "v3", "v", "l", "b01", "None", '""', '"', "", "\ud800", "EnterPostproc"]
    ),
    st.text(max_size=4),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=3), max_leaves=8),
    st.integers(1, 900).map(lambda depth: _nested(depth)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def _nested(depth):
    value = "v3"
    for _ in range(depth):
        value = [value]
    return value


@settings(max_examples=300, deadline=None)
@given(
    source=st.integers(0, len(_SOURCES) - 1),
    place=st.integers(0, 2000),
    value=_odd_values,
    delete=st.booleans(),
)
def test_mutated_traces_are_refused_or_come_back(source, place, value, delete):
    trace = copy.deepcopy(_SOURCES[source])
    path = _PLACES[source][place % len(_PLACES[source])]
    if path:
        target = trace
        for index in path[:-1]:
            target = target[index]
        if delete:
            del target[path[-1]]
        else:
            target[path[-1]] = value
    else:
        trace = value
    try:
        primitives = read_trace(trace)
    except StepError:
        return
    assert all(math.isfinite(number) for p in primitives for number in p.numbers)
    expected = before_postprocessing(trace)
    expected[1].sort(key=lambda decision: decision[0])
    assert text(write_trace(primitives)) == text(expected)


def test_every_handed_trace_comes_back():
    traces, unknown = 0, 0
    for file in handed_files("logs/metaschedule/*/database_tuning_record.json.zst"):
        for _, (trace, *_rest) in json_lines(file):
            primitives = read_trace(trace)
            assert text(write_trace(primitives)) == text(before_postprocessing(trace))
            unknown += sum(primitive.kind == "unknown" for primitive in primitives)
            traces += 1
    # The counts of the logs' own description: 115 + 31 + 23 + 19 + 292 + 506.
    assert traces == 986
    assert unknown == 0
