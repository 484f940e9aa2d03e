"""From a row's decisions to a program: replay, read back, postprocess."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from tlp.metaschedule.sketches import Design, read_decisions
from tlp.tuning.decisions import Decisions


@dataclass(frozen=True)
class Replayed:
    """What became of a row.

    Parameters
    ----------
    schedule
        The scheduled program (TVM), or None if refused.
    decisions
        The decisions read back: replay repairs some.
    program
        Structural hash of the postprocessed program; empty if refused.
    refused_by
        Name of the postprocessor that refused the program; empty if none did.
    """

    schedule: Any
    decisions: Decisions
    program: str
    refused_by: str


def _decision_value(kind: str, value: tuple[int, ...]) -> list[int] | int:
    return list(value) if kind == "SamplePerfectTile" else value[0]


def replay(design: Design, sketch: int, decisions: Decisions) -> Replayed:
    """Apply a sketch with decisions to the workload and run the postprocessors.

    The same decisions always give the same program: repairs draw from a fixed seed.

    Raises
    ------
    Exception
        What TVM raises when an instruction cannot be applied.
    """
    import tvm_ffi
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    chosen = design.sketches[sketch]
    trace = Trace(
        list(chosen.instructions),
        {
            instruction: _decision_value(instruction.kind.name, value)
            for instruction, value in zip(chosen.sampling, decisions, strict=True)
        },
    )
    seed = zlib.crc32(repr(decisions).encode()) % (2**31 - 2) + 1
    schedule = Schedule(design.mod, seed=seed, error_render_level="none")
    trace.apply_to_schedule(schedule, remove_postproc=True)
    granted = read_decisions(schedule.trace)
    schedule.enter_postproc()
    for postproc in design.postprocs:
        if not postproc.apply(schedule):
            name = type(postproc).__name__
            return Replayed(None, granted, "", name)
    program = f"{tvm_ffi.structural_hash(schedule.mod) & (2**64 - 1):016x}"
    return Replayed(schedule, granted, program, "")
