"""Lines become rows that say what the JSON says, or are refused; real lines, and mutations."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_files import ANSOR, METASCHEDULE, record

from tlp.primitives.ansor import write_step
from tlp.primitives.metaschedule import write_trace
from tlp.records.logs import Block
from tlp.records.reader import STATUSES, LogReader
from tlp.records.status import Status


class Whole:
    """A reader whose numbers are looked up again."""

    def __init__(self):
        self.reader = LogReader()
        self.primitives, self.tasks = [], []

    def read(self, *lines: bytes | str):
        data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
        batch = self.reader.read(Block(1, data, data.count(b"\n") + 1, len(data)))
        self.primitives += batch.new_primitives
        self.tasks += batch.new_tasks
        accounted = len(batch.lines) + len(batch.rejected) + batch.blank + batch.comments
        assert accounted == data.count(b"\n") + 1
        return batch

    def rows(self, batch):
        """(line, task, sequence, latencies, status, error, stamp) of each row."""
        start = first = 0
        for i, line in enumerate(batch.lines.tolist()):
            end, last = start + batch.lengths[i], first + batch.repeats[i]
            yield (
                line,
                self.tasks[batch.tasks[i]],
                tuple(self.primitives[number] for number in batch.primitives[start:end]),
                batch.latencies[first:last].tolist(),
                STATUSES[batch.statuses[i]],
                batch.texts[batch.errors[i]],
                int(batch.stamps[i]),
            )
            start, first = end, last
        assert (start, first) == (len(batch.primitives), len(batch.latencies))


def says_the_same(row, line: bytes) -> None:
    """A row against the standard library's reading of its line."""
    _, task, sequence, latencies, status, _, stamp = row
    value = json.loads(line)
    if isinstance(value, dict):
        (inputs, (_, steps)), (costs, error, _, time) = value["i"], value["r"]
        assert json.dumps([write_step(one) for one in sequence]) == json.dumps(steps)
        assert (task.workload, task.target, task.version) == (*inputs[:2], value["v"])
        assert task.hardware == ",".join(map(str, inputs[2] if len(inputs) > 2 else []))
        assert stamp == int(time)
        assert (status is Status.OK) == (error == 0 and max(costs) < 1e9)
    else:
        trace, costs, _, _ = value[1]
        written = write_trace(sequence)
        assert json.dumps(written[0]) == json.dumps(trace[0][: len(written[0])])
        assert (status is Status.OK) == (costs is not None and max(costs) < 1e9)
    assert latencies == [cost for cost in costs or () if cost < 1e9]
    assert all(latency > 0 for latency in latencies)


def test_real_lines_say_what_the_standard_library_reads_twice():
    whole = Whole()
    for _ in range(2):
        lines = [*ANSOR, *METASCHEDULE]
        batch = whole.read(*lines)
        assert len(batch.lines) == len(lines)
        for row, line in zip(whole.rows(batch), lines, strict=True):
            says_the_same(row, line)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (1, "replay_error"),
        (2, "build_error"),
        (3, "build_error"),
        (4, "run_error"),
        (5, "wrong_output"),
        (6, "build_timeout"),
        (7, "run_timeout"),
        (8, "failed"),
    ],
)
def test_error_numbers_become_statuses(error, status):
    whole = Whole()
    (row,) = whole.rows(whole.read(record(costs=[1e10], error=error)))
    assert row[3:5] == ([], Status(status))
    assert f"error {error}" in row[5]


def test_a_cost_of_1e10_is_a_failure_in_both_frameworks():
    whole = Whole()
    value = json.loads(METASCHEDULE[2])
    for costs, real in (([1e10], []), ([2e-3, 1e10, 10**30], [2e-3])):
        value[1][1] = costs
        rows = list(whole.rows(whole.read(record(costs=costs), json.dumps(value))))
        assert len(rows) == 2
        for row in rows:
            assert row[3:5] == (real, Status.FAILED)
            assert "1e10" in row[5]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (record(costs=[]), "costs"),
        (record(costs=[0.0]), "positive"),
        (record(costs=[-1.0]), "positive"),
        (record(costs=[True]), "positive"),
        (record(costs=["0.1"]), "positive"),
        (record(costs=[0.1, None]), "positive"),
        (record(costs=[0.1, 0.0]), "positive"),
        (record(error=9), "error"),
        (record(error=False), "error"),
        (record(stamp=-1), "time stamp"),
        (record(steps=[["SP", 2, 0, 512.0, [4], 1]]), "SP, field extent"),
        (record(steps=[["SP", 2, 0, 512, [4]]]), "fields"),
        (record(steps=[["FU", 2, [10**30]]]), "FU"),
        (record().replace('"v0.6"', "6"), "version"),
        (record().replace('"r": [[0.002]', '"r": [[1e999]'), "infinity"),
        (record().replace("0.002", "NaN"), "no JSON"),
        ('{"i": [["k", "llvm"], [[], []]]}', "not measured"),
        ('{"i": ["llvm", "conv2d", [], {}, [], {}], "r": [[0.1], 0, 0.2, 1], "v": 0.1}', "AutoTVM"),
        ('{"input": [], "config": {}, "result": [], "version": 0.2}', "AutoTVM"),
        ('["123", "AAAA"]', "database_workload"),
        ("[" * 100_000, "no JSON"),
        ("17", "neither"),
        (b'{"i": "\xff"}', "no JSON"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(line, reason):
    whole = Whole()
    # The same between good lines, whose parts are known by then.
    batch = whole.read(record(), line, record(factor=8))
    assert batch.lines.tolist() == [1, 3]
    assert [number for number, _ in batch.rejected] == [2]
    assert reason in batch.rejected[0][1]


def test_a_byte_order_mark_is_no_part_of_the_first_line_and_of_that_only():
    batch = Whole().read(b"\xef\xbb\xbf" + ANSOR[0], b"\xef\xbb\xbf" + ANSOR[0], ANSOR[0])
    assert batch.lines.tolist() == [1, 3]
    assert Whole().read(b"\xef\xbb\xbf").blank == 1


def test_blank_and_comment_lines_and_windows_ends():
    whole = Whole()
    batch = whole.read("# said", "", " \t", "  # also", record() + "\r")
    assert (batch.comments, batch.blank, batch.lines.tolist()) == (2, 2, [5])


VALUES = st.sampled_from(
    [
        *("0", "-1", "1.5", "1e5", "1e400", "NaN", "true", "null", '"x"', "[]", "{}", "-0"),
        *(str(10**30), str(2**63), '"\\u0074"', "512.0", '"\udcff"'),
        *("[[[[[[]]]]]]", "[" * 2000 + "]" * 2000),
    ]
)
TOKEN = re.compile(rb'-?[0-9][0-9.e+-]*|"(?:[^"\\]|\\.)*"|\[|\]|,')


@st.composite
def mutated(draw):
    line = draw(st.sampled_from([*ANSOR, *METASCHEDULE]))
    how = draw(st.sampled_from(["cut", "byte", "value", "value", "value", "swap", "double"]))
    at = draw(st.integers(0, len(line) - 1))
    if how == "cut":
        return line[:at]
    if how == "byte":
        byte = draw(st.integers(0, 255).filter(lambda value: value != 10))
        return line[:at] + bytes([byte]) + line[at + 1 :]
    places = [match.span() for match in TOKEN.finditer(line)]
    # Near either end there is the task and the result; between them are steps without number.
    near = draw(st.integers(0, 24)) if draw(st.booleans()) else -draw(st.integers(1, 24))
    start, end = places[near] if draw(st.booleans()) else draw(st.sampled_from(places))
    if how == "value":
        return line[:start] + draw(VALUES).encode("utf-8", "surrogateescape") + line[end:]
    if how == "double":
        return line[:end] + line[start:]
    other, last = draw(st.sampled_from(places))
    return line[:start] + line[other:last] + line[end:]


@settings(max_examples=400, deadline=None)
@given(st.lists(mutated(), min_size=1, max_size=4))
def test_mutated_lines_are_refused_or_say_what_they_say(lines):
    whole = Whole()
    whole.read(*ANSOR)  # What is known makes no line right.
    batch = whole.read(*lines)
    for row in whole.rows(batch):
        says_the_same(row, lines[row[0] - 1])
    # A reader that has seen nothing, and one line at a time, agree.
    alone = [bool(len(Whole().read(line).lines)) for line in lines]
    assert alone == [number in batch.lines for number in range(1, len(lines) + 1)]


def test_a_reader_forgets_when_it_knows_too_much(monkeypatch):
    from tlp.records import reader

    monkeypatch.setattr(reader, "_REMEMBERED", 4000)
    whole = Whole()
    names = set()
    for factor in range(1, 30):
        batch = whole.read(record(factor=factor))
        if batch.reader not in names:
            whole.primitives, whole.tasks = batch.new_primitives, batch.new_tasks
        names.add(batch.reader)
        (row,) = whole.rows(batch)
        assert row[2][0].numbers[3] == factor
    assert len(names) > 3
