from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from raw_logs import ANSOR_STEPS, TRACES, handed_files, json_lines

from tlp.errors import EncodingError
from tlp.primitives.ansor import read_step
from tlp.primitives.encoding import NAMED, PAPER_CPU, PAPER_GPU, Encoder, Encoding, fit_encoding
from tlp.primitives.metaschedule import read_trace
from tlp.primitives.table import PrimitiveTable, pad, ragged
from tlp.primitives.vocabulary import ANSOR_KINDS, KINDS, METASCHEDULE_KINDS

CPU_NAMES = ["SP", "FSP", "RE", "FU", "AN", "PR", "CA", "CI", "CR", "CHW", "RF"]
GPU_NAMES = ["SP", "FSP", "FFSP", "RE", "FU", "AN", "PR", "CA", "CI", "CHR", "CHW"]


def paper_rule(steps, names, unroll, length, width):
    """The paper's features of one program: written from its description, with plain loops."""
    sequence = []
    for step in steps:
        row = [0.0] * len(names)
        row[names.index(step[0])] = 1.0
        for field in step[1:]:
            if isinstance(field, list):
                for number in field:
                    row.append(number)
            elif isinstance(field, str):
                if step[0] == "PR":
                    row.append(unroll.index(int(field.split("$")[1])) + 1)
                elif step[0] == "CHW":
                    row.append({"local": 1, "shared": 2, "global": 3}[field])
                else:
                    assert (step[0], field) == ("CHR", "shared")
                    row.append(1)
            else:
                row.append(field)
        while len(row) < width:
            row.append(0)
        sequence.append(row[:width])
    while len(sequence) < length:
        sequence.append([0] * width)
    return sequence[:length]


LAYOUTS = {
    "paper-cpu": (CPU_NAMES, [0, 16, 64, 512], 25, 22),
    "paper-gpu": (GPU_NAMES, [0, 16, 64, 512, 1024], 40, 20),
}


def follows(steps, names, unroll):
    """Whether the paper's rule is defined for a program."""
    return all(
        step[0] in names and (step[0] != "PR" or int(step[3].split("$")[1]) in unroll)
        for step in steps
    )


def encode(sequences, encoding):
    table = PrimitiveTable()
    flat, offsets = ragged([table.add_all(map(read_step, steps)) for steps in sequences])
    return Encoder(encoding, list(table)).encode(flat, offsets)


def assert_paper(name, programs):
    names, unroll, length, width = LAYOUTS[name]
    programs = [steps for steps in programs if follows(steps, names, unroll)]
    arrays, mask = encode(programs, NAMED[name])
    expected = np.array(
        [paper_rule(steps, names, unroll, length, width) for steps in programs], np.float32
    )
    assert arrays.dtype == np.float32
    np.testing.assert_array_equal(arrays, expected)
    np.testing.assert_array_equal(mask.sum(1), [min(len(steps), length) for steps in programs])
    return len(programs)


def test_the_papers_layouts_on_the_projects_lines():
    gpu, *cpu = ANSOR_STEPS
    assert assert_paper("paper-gpu", [gpu]) == 1
    assert assert_paper("paper-cpu", cpu) == 2


@pytest.mark.parametrize(
    ("name", "pattern", "least"),
    [
        ("paper-cpu", "logs/ansor/*.zst", 1500),
        ("paper-gpu", "logs/ansor/*.zst", 2000),
        ("paper-cpu", "ansor-x86/*.zst", 2000),
    ],
)
def test_the_papers_layouts_on_handed_lines(name, pattern, least):
    programs = [
        record["i"][1][1]
        for file in handed_files(pattern)
        for record in json_lines(file, limit=250)
    ]
    assert assert_paper(name, programs) >= least


def test_the_papers_sizes():
    assert (PAPER_CPU.length, PAPER_CPU.width) == (25, 22)
    assert (PAPER_GPU.length, PAPER_GPU.width) == (40, 20)
    assert len(PAPER_CPU.kinds) == len(PAPER_GPU.kinds) == 11


def test_what_the_paper_did_not_know_is_counted():
    steps = [["CHR", 1, "shared", [2]], ["PR", 1, 0, "auto_unroll_max_step$128"], ["CI", 4]]
    table = PrimitiveTable()
    numbers = table.add_all(map(read_step, [*steps, steps[0]]))
    encoder = Encoder(PAPER_CPU, list(table))

    assert encoder.count_unknown(numbers) == 2
    assert encoder.table[0].tolist() == [0] * 11 + [1, 1, 2] + [0] * 8
    assert encoder.table[1, 11:14].tolist() == [1, 0, 0]


def test_the_papers_layout_is_for_ansor():
    with pytest.raises(EncodingError, match="Ansor's steps"):
        Encoder(PAPER_CPU, read_trace(TRACES[0]))


def test_a_row_of_features():
    encoding = Encoding(
        name="by-hand",
        layout="features",
        kinds=("split", "annotate", "unknown"),
        tokens=("unroll", "vectorize"),
        numbers=4,
        length=3,
    )
    steps = [["SP", 3, 0, 512, [4, 1], 1], ["AN", 3, 9, 2], ["AN", 3, 9, 3], ["CI", 7]]
    arrays, mask = encode([steps, steps[1:2]], encoding)

    assert encoding.width == 10
    assert arrays.shape == (2, 3, 10)
    assert arrays[0].tolist() == [
        [1, 0, 0, 0, 0, 0, 3, 0, 512, 4],
        [0, 1, 0, 0, 1, 0, 3, 9, 0, 0],
        [0, 1, 0, 0, 0, 1, 3, 9, 0, 0],
    ]
    assert arrays[1, 1:].tolist() == [[0] * 10] * 2
    assert mask.tolist() == [[True] * 3, [True, False, False]]
    encoder = Encoder(encoding, [read_step(step) for step in steps])
    assert encoder.table[3].tolist() == [0, 0, 1, 0, 0, 0, 7, 0, 0, 0]
    assert encoder.known.tolist() == [True, True, True, False]


def test_log2_keeps_signs_and_zero():
    encoding = Encoding("log", "features", ("split", "unknown"), 5, 1, scale="log2")
    arrays, _ = encode([[["SP", 0, -3, 7, [1023, 1], 1]]], encoding)

    assert arrays[0, 0].tolist() == [1, 0, 0, 0, -2, 3, 10, 1]


def test_numbers_too_large_for_float32_stay_finite():
    encoding = Encoding("large", "features", ("unknown",), 2, 1)
    arrays, _ = encode([[["XYZ", 1e300, -1e300]]], encoding)

    limit = float(np.finfo(np.float32).max)
    assert arrays[0, 0, 2:].tolist() == [limit, -limit]


def test_length_and_numbers_cover_the_stated_share():
    # Nine sequences of one primitive and one of five: 14 primitives. CI has 1 number, RE 4.
    table = PrimitiveTable()
    inline = read_step(["CI", 1])
    reorder = read_step(["RE", 1, [0, 1, 2]])
    sequences = [table.add_all([inline])] * 9 + [table.add_all([inline] * 3 + [reorder] * 2)]
    flat, offsets = ragged(sequences)

    def fitted(coverage, **given):
        encoding = fit_encoding(list(table), flat, offsets, coverage=coverage, **given)
        return encoding.length, encoding.numbers

    assert fitted(0.5) == (1, 1)
    assert fitted(12 / 14) == (1, 1)
    assert fitted(0.9) == (1, 4)
    assert fitted(0.91) == (5, 4)
    assert fitted(1) == (5, 4)
    assert fitted(1, length=2, numbers=3) == (2, 3)
    encoding = fit_encoding(list(table), flat, offsets)
    assert encoding.kinds == ("reorder", "inline", "unknown")
    assert encoding.tokens == ()


def test_what_does_not_occur_is_not_fitted():
    table = PrimitiveTable()
    table.add(read_step(["RE", 1, [0, 1, 2]]))
    flat, offsets = ragged([table.add_all([read_step(["CHW", 1, "local"])])])
    encoding = fit_encoding(list(table), flat, offsets)

    assert (encoding.kinds, encoding.tokens) == (("cache_write", "unknown"), ("local",))
    assert encoding.numbers == 1


def test_fitting_needs_data_and_a_share():
    flat, offsets = ragged([])
    with pytest.raises(EncodingError, match="length yourself"):
        fit_encoding([], flat, offsets)
    with pytest.raises(EncodingError, match="numbers yourself"):
        fit_encoding([], flat, offsets, length=3)
    assert fit_encoding([], flat, offsets, length=3, numbers=2).width == 4
    for coverage in (0, 1.1):
        with pytest.raises(EncodingError, match="coverage"):
            fit_encoding([], flat, offsets, coverage=coverage)


@pytest.mark.parametrize("encoding", NAMED.values())
def test_an_encoding_is_plain_json(encoding):
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))

    assert again == encoding
    assert hash(again) == hash(encoding)
    assert again.hash == encoding.hash


def test_hashes_stay_what_they_are_and_tell_rows_apart():
    # Stored in data sets and checkpoints: another hash here needs another version.
    assert PAPER_CPU.hash == "3d2523f8da23209d"
    assert PAPER_GPU.hash == "4828665a48b5a7e7"
    changes = [{"scale": "log2"}, {"length": 26}, {"numbers": 12}, {"words": ()}]
    hashes = {dataclasses.replace(PAPER_CPU, **change).hash for change in changes}
    assert len(hashes | {PAPER_CPU.hash}) == 5
    assert dataclasses.replace(PAPER_CPU, name="other").hash == PAPER_CPU.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"vocabulary": 99}, "vocabulary 99"),
        ({"layout": "text"}, "layout"),
        ({"scale": "ln"}, "scale"),
        ({"length": 0}, "length"),
        ({"numbers": -1}, "numbers"),
        ({"length": "long"}, "whole number"),
        ({"numbers": 1.5}, "whole number"),
        ({"tokens": [3]}, "malformed"),
        ({"words": [["PR", 1]]}, "malformed"),
        ({"kinds": 3}, "malformed"),
        ({"more": 3}, "fields"),
    ],
)
def test_a_foreign_encoding_is_refused(change, message):
    with pytest.raises(EncodingError, match=message):
        Encoding.from_json({**PAPER_CPU.to_json(), **change})


def test_padding_and_cropping():
    flat, offsets = ragged([[4, 5, 6], [], [7]])

    assert flat.tolist() == [4, 5, 6, 7]
    assert offsets.tolist() == [0, 3, 3, 4]
    assert pad(flat, offsets, 2).tolist() == [[4, 5], [-1, -1], [7, -1]]
    assert pad(*ragged([[], []]), 2).tolist() == [[-1, -1], [-1, -1]]
    assert pad(*ragged([]), 2).shape == (0, 2)


def test_a_table_numbers_each_primitive_once():
    table = PrimitiveTable([read_step(["CI", 1])])

    assert table.add_all(map(read_step, [["CI", 2], ["CI", 1], ["CI", 2]])).tolist() == [1, 0, 1]
    assert [primitive.numbers for primitive in table] == [(1,), (2,)]
    assert len(table) == 2


def test_the_vocabulary_of_version_one():
    """Kinds of both frameworks that mean the same; the order of columns must never change."""
    shared = set(ANSOR_KINDS.values()) & set(METASCHEDULE_KINDS.values())
    assert shared == {
        "split", "reorder", "fuse", "annotate", "compute_at", "inline", "cache_read",
        "cache_write", "rfactor", "storage_align",
    }  # fmt: skip
    assert len(set(KINDS)) == len(KINDS) == 53
    assert KINDS[:14] == tuple(ANSOR_KINDS.values())
    assert KINDS[-1] == "unknown"


def test_the_language_needs_numpy_only():
    code = (
        "import sys, tlp.primitives.ansor, tlp.primitives.metaschedule, tlp.primitives.encoding\n"
        "print(*sorted({'tvm', 'torch', 'pyarrow', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
