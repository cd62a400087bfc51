"""Faults of computations in registers: operands of packed arithmetic and of PTX, and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gluonsim import Kind, Result, simulate
from mutants.committed import changed_within as edited
from mutants.handwritten import faults_of

K = Kind
NUMBERS = K.WRONG_NUMBERS


def random(*shape: int) -> torch.Tensor:
    """Return small integers as fp32, the same ones each time."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).float()


def packed(module: Any, schedules: Sequence[str]) -> Result:
    """Take three vectors of 512 numbers."""
    x, y, z = random(3, 512).unbind()
    wanted = ((x + y) * z + (x - z)).minimum(y.maximum(z)).maximum(y.minimum(z)).half()
    launched = simulate(module.packed_kernel, "b200", schedules=schedules, expect={"d_ptr": wanted})
    return launched[1](x.clone(), y.clone(), z.clone(), torch.zeros(512).half())


def assembly(module: Any, schedules: Sequence[str]) -> Result:
    """Take 512 pairs of numbers, and words of random bits."""
    x, y = random(2, 512)
    words = torch.randint(-(2**31), 2**31, (512,), generator=torch.Generator().manual_seed(1)).int()
    pairs = torch.stack([x, y], 1).bfloat16().view(torch.int32).flatten()
    halves = torch.stack([words.view(torch.int16)[::2], pairs.view(torch.int16)[::2]], 1)
    expect = {
        "pairs_ptr": pairs,
        "codes_ptr": words >> 4 & 0x000F000F | 0x43004300,
        "moved_ptr": halves.view(torch.int32).flatten(),
        "signs_ptr": torch.where(x < y, -1, 1).int(),
    }
    launched = simulate(module.assembly_kernel, schedules=schedules, expect=expect)
    return launched[1](x.clone(), y.clone(), words, *(torch.zeros(512).int() for _ in range(4)))


def reduced(module: Any, schedules: Sequence[str]) -> Result:
    """Reduce the first 50 rows of 41 negative numbers; the largest one of a row comes twice."""
    x = random(90, 41) - 20
    x[:, 7] = x[:, 30] = -5
    rows = x[:50]
    expect = {
        "largest_ptr": rows.amax(1),
        "position_ptr": torch.full((50,), 7).int(),
        "mean_ptr": rows.mean(1),
    }
    launched = simulate(module.reduced_kernel, schedules=schedules, expect=expect, rtol=1e-6)
    return launched[1](x, torch.zeros(50), torch.zeros(50).int(), torch.zeros(50), 50, 41)


def parts(module: Any, schedules: Sequence[str]) -> Result:
    """Sum the columns of 64 x 64 numbers."""
    x = random(64, 64)
    launched = simulate(module.parts_kernel, schedules=schedules, expect={"d_ptr": x.sum(0)})
    return launched[1](x, torch.zeros(64))


def running(module: Any, schedules: Sequence[str]) -> Result:
    """Add up three blocks."""
    x = random(3, 64, 64)
    launched = simulate(module.running_kernel, schedules=schedules, expect={"d_ptr": x.sum(0)})
    return launched[1](x, torch.zeros(64, 64), 3)


LAUNCHES = {"packed": packed, "assembly": assembly, "reduced": reduced, "parts": parts, "running": running}
pairs, ptx, reduction, whole, total = (
    faults_of("registers", f"{name}_kernel", launch) for name, launch in LAUNCHES.items()
)
combined = faults_of("registers", "_larger", reduced)
half = faults_of("registers", "_summing", parts)
CONVERSION, LOP3, PERMUTATION = (
    "cvt.rn.bf16x2.f32 $0, $2, $1;",
    "0x43004300, 0xEA",
    "prmt.b32 $0, $1, $2, 0x5410",
)
TOTAL = "gl.sum(gl.where(inside, x, 0.0), 1)"
ACROSS = "gl.convert_layout(gl.sum(gl.where(inside, x, 0.0), 0), gl.SliceLayout(1, TILE))"
COMPARISON = "setp.lt.f32 p, $1, $2"
PACKED = {
    "packed_difference_turned_round": pairs(NUMBERS, "d_ptr", "", ("sub2(x, z)", "sub2(z, x)")),
    "packed_addend_of_another_name": pairs(NUMBERS, "d_ptr", "", ("z, differences", "z, sums")),
    "packed_factor_of_another_name": pairs(NUMBERS, "d_ptr", "", ("fma2(sums, z,", "fma2(sums, y,")),
    "packed_bounds_exchanged": pairs(NUMBERS, "d_ptr", "", ("low, high =", "high, low =")),
    "ptx_halves_exchanged": ptx(NUMBERS, "pairs_ptr", "", edited(CONVERSION, "$2, $1", "$1, $2")),
    "ptx_table_of_another_function": ptx(NUMBERS, "codes_ptr", "", edited(LOP3, "0xEA", "0xE8")),
    "ptx_shift_of_another_field": ptx(NUMBERS, "codes_ptr", "", ("shr.u32 t, $1, 4", "shr.u32 t, $1, 8")),
    "ptx_bytes_of_another_operand": ptx(NUMBERS, "moved_ptr", "", edited(PERMUTATION, "0x5410", "0x3210")),
    "ptx_comparison_turned_round": ptx(NUMBERS, "signs_ptr", "", edited(COMPARISON, "$1, $2", "$2, $1")),
    "ptx_operand_that_there_is_not": ptx(
        "simulator-unsupported", "", "gl.inline_asm", edited(PERMUTATION, "$1, $2", "$1, $3")
    ),
}
REDUCED = {
    "reduced_without_the_neutral_number": reduction(
        NUMBERS, "largest_ptr", "", ('other=-float("inf")', "other=0.0")
    ),
    "reduced_along_the_other_axis": reduction(NUMBERS, "mean_ptr", "", (TOTAL, ACROSS)),
    "reduced_with_lanes_beyond_the_edge": reduction(
        NUMBERS, "mean_ptr", "", ("gl.where(inside, x, 0.0)", "gl.where(inside, x, -1.0)")
    ),
    "reduced_with_the_last_lane_dropped": reduction(
        NUMBERS, "mean_ptr", "", ("(column < columns)", "(column < columns - 1)")
    ),
    "reduced_divided_by_the_tile": reduction(NUMBERS, "mean_ptr", "", ("total / columns", "total / 64")),
    "reduced_rows_of_the_tile": reduction(
        NUMBERS, "position_ptr", "", ("row[:, None] * columns", "row[:, None] * 64")
    ),
    "reduced_to_the_last_of_equal_numbers": combined(NUMBERS, "position_ptr", "", ("(i < j)", "(i > j)")),
    "reduced_to_the_smaller_number": combined(NUMBERS, "largest_ptr", "", ("(a > b)", "(a < b)")),
    "reduced_with_positions_of_the_other": combined(
        NUMBERS, "position_ptr", "", ("gl.where(first, i, j)", "gl.where(first, j, i)")
    ),
    "parts_in_one_place": half(
        K.WRITE_AFTER_WRITE,
        "parts",
        "parts.slice(0, 1).store(",
        ("parts.slice(part, 1)", "parts.slice(0, 1)"),
    ),
    "parts_told_before_they_are_stored": half(
        K.READ_AFTER_WRITE,
        "parts",
        "parts.load(",
        ("    mbarrier.arrive(ready)\n", ""),
        ("    sums = gl.sum(x, 0)\n", "    sums = gl.sum(x, 0)\n    mbarrier.arrive(ready)\n"),
    ),
    "parts_added_up_when_one_is_there": whole(
        K.UNINITIALISED_READ,
        "parts",
        "parts.load(",
        ("mbarrier.init(ready, count=2)", "mbarrier.init(ready, count=1)"),
    ),
    "parts_of_half_of_the_rows": half(NUMBERS, "d_ptr", "", ("part * 32", "0 * part * 32")),
    "running_sum_without_a_beginning": total(
        K.UNINITIALISED_READ,
        "kept",
        "kept.load(",
        ("    kept.store(gl.zeros([64, 64], gl.float32, TILE))\n", ""),
    ),
    "running_sum_that_forgets": total(NUMBERS, "d_ptr", "", ("kept.load(TILE) + gl.load(", "gl.load(")),
}
FAULTS = PACKED | REDUCED
