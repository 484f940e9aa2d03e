from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_logs import ANSOR_STEPS, handed_files, json_lines, text

from tlp.errors import StepError
from tlp.primitives.ansor import read_step, write_step
from tlp.primitives.metaschedule import read_trace
from tlp.primitives.primitive import PRIMITIVE_SCHEMA, Framework, Primitive

# Step, kind, numbers and tokens, read off by hand.
EXAMPLES = [
    (["SP", 3, 0, 512, [4, 1], 1], "split", (3, 0, 512, 4, 1, 1), ()),
    (["SP", 3, 0, 512, [], 0], "split", (3, 0, 512, 0), ()),
    (["FSP", 6, 5, 2, 1], "follow_split", (6, 5, 2, 1), ()),
    (["FFSP", 3, 0, [2, 1], 1, 1], "follow_fused_split", (3, 0, 2, 1, 1, 1), ()),
    (["RE", 2, [0, 2, 1]], "reorder", (2, 0, 2, 1), ()),
    (["FU", 1, [0, 1]], "fuse", (1, 0, 1), ()),
    (["AN", 8, 0, 1], "annotate", (8, 0), ("unroll",)),
    (["AN", 8, 0, 2], "annotate", (8, 0), ("vectorize",)),
    (["AN", 8, 0, 3], "annotate", (8, 0), ("parallel",)),
    (["AN", 8, 0, 4], "annotate", (8, 0), ("vthread.x",)),
    (["AN", 8, 0, 6], "annotate", (8, 0), ("threadIdx.x",)),
    (["PR", 1, 0, "auto_unroll_max_step$64"], "pragma", (1, 0, 64), ("auto_unroll_max_step",)),
    (["PR", 1, 0, "auto_unroll_max_step$064"], "pragma", (1, 0), ("auto_unroll_max_step$064",)),
    (["PR", 1, 0, "debug"], "pragma", (1, 0), ("debug",)),
    (["CA", 2, 3, 5], "compute_at", (2, 3, 5), ()),
    (["CI", 1], "inline", (1,), ()),
    (["CR", 2], "compute_root", (2,), ()),
    (["CHR", 1, "shared", [2]], "cache_read", (1, 2), ("shared",)),
    (["CHW", 2, "local"], "cache_write", (2,), ("local",)),
    (["RF", 3, 2, 1], "rfactor", (3, 2, 1), ()),
    (["SA", 3, 2, 8, 4], "storage_align", (3, 2, 8, 4), ()),
]


@pytest.mark.parametrize(("step", "kind", "numbers", "tokens"), EXAMPLES)
def test_a_step_is_read_by_its_fields(step, kind, numbers, tokens):
    primitive = read_step(step)

    assert primitive.framework is Framework.ANSOR
    assert (primitive.opcode, primitive.kind) == (step[0], kind)
    assert (primitive.numbers, primitive.tokens) == (numbers, tokens)
    assert primitive.names == ()
    assert text(write_step(primitive)) == text(step)


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (["SP", 3, 0, None, [4, 1], 1], "extent"),
        (["SP", 3, 0, 512, 4, 1], "lengths"),
        (["SP", 3, 0, 512, [4, [1]], 1], "lengths"),
        (["SP", 3, 0, 512, [4, "1"], 1], "lengths"),
        (["SP", 3.0, 0, 512, [4, 1], 1], "stage"),
        (["SP", 3, 0, 512, [4, 1], True], "inner_to_outer"),
        (["SP", 3, 0, 2**53 + 1, [4, 1], 1], "2^53"),
        (["SP", 3, 0, 512, [4, 1]], "5 fields"),
        (["AN", 3, 0, 12], "annotation"),
        (["AN", 3, 0, -1], "annotation"),
        (["PR", 1, 0, 16], "pragma"),
        (["CHW", 1, None], "scope"),
        (["CI", math.nan], "stage"),
        (["CI", "\ud800"], "stage"),
        (["PR", 1, 0, "\ud800"], "pragma"),
        ([], "step's name"),
        ([1, 2], "step's name"),
        ("SP", "step's name"),
        (None, "step's name"),
    ],
)
def test_what_is_malformed_is_named(step, field):
    with pytest.raises(StepError) as caught:
        read_step(step)
    assert field in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_steps_of_unknown_kinds_are_kept():
    step = ["XYZ", 3, [1, [2, "name"]], None, True, 0.5, {"a": [1]}, 2**70]
    primitive = read_step(step)

    assert (primitive.kind, primitive.opcode) == ("unknown", "XYZ")
    assert primitive.numbers == (3, 1, 2, 1, 0.5)
    assert primitive.tokens == ()
    assert text(write_step(primitive)) == text(step)


def test_primitives_are_stored_as_plain_rows():
    for step in [*(step for steps in ANSOR_STEPS for step in steps), ["XYZ", 1, 0.5, "a"]]:
        primitive = read_step(step)
        row = primitive.to_row()

        assert list(row) == list(PRIMITIVE_SCHEMA)
        assert all(type(number) is float for number in row["numbers"])
        again = Primitive.from_row(row)
        assert again == primitive
        assert hash(again) == hash(primitive)
        assert text(write_step(again)) == text(step)


def test_the_description_names_the_step_and_its_parts():
    assert read_step(["CHR", 1, "shared", [2]]).describe() == "CHR[1, 2] shared"


def test_a_primitive_that_does_not_fit_is_refused():
    primitive = read_step(["CI", 1])
    for wrong in (
        {"form": "##"},
        {"form": ""},
        {"form": "=#"},
        {"numbers": ()},
        {"numbers": (math.inf,)},
        {"framework": Framework.METASCHEDULE},
    ):
        with pytest.raises(StepError):
            write_step(Primitive(**{**primitive.__dict__, **wrong}))
    (block,) = read_trace([[["GetBlock", [], ["a", "main"], ["b0"]]], []])
    with pytest.raises(StepError, match="framework"):
        write_step(block)


odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53, 2**53 + 1, -(2**70), 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.characters(categories=["Cs"]),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=3), max_leaves=8),
    st.integers(1, 900).map(lambda depth: _nested(depth)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@settings(max_examples=300, deadline=None)
@given(
    step=st.sampled_from([step for steps in ANSOR_STEPS for step in steps] + [["XYZ", 1, "a"]]),
    place=st.integers(0, 5),
    value=odd_values,
    how=st.sampled_from(["replace", "insert", "delete", "inside"]),
)
def test_mutated_steps_are_refused_or_come_back(step, place, value, how):
    step = copy.deepcopy(step)
    place %= len(step)
    if how == "replace":
        step[place] = value
    elif how == "insert":
        step.insert(place, value)
    elif how == "delete":
        del step[place]
    elif isinstance(step[place], list):
        step[place].append(value)
    try:
        primitive = read_step(step)
    except StepError:
        return
    assert all(math.isfinite(number) for number in primitive.numbers)
    assert text(write_step(Primitive.from_row(primitive.to_row()))) == text(step)


def _assert_round_trip(files, limit=None):
    seen: dict[str, str] = {}
    lines = 0
    for file in files:
        for record in json_lines(file, limit):
            lines += 1
            for step in record["i"][1][1]:
                key = text(step)
                if key not in seen:
                    seen[key] = text(write_step(Primitive.from_row(read_step(step).to_row())))
    assert lines > 0
    assert [key for key, written in seen.items() if key != written] == []
    return lines


def test_every_step_of_the_handed_logs_comes_back():
    _assert_round_trip(handed_files("logs/ansor/*.zst"))


def test_steps_of_one_machine_come_back():
    _assert_round_trip(handed_files("ansor-x86/*.zst"), limit=300)


@pytest.mark.slow
def test_every_step_of_one_machine_comes_back():
    assert _assert_round_trip(handed_files("ansor-x86/*.zst")) == 712474
