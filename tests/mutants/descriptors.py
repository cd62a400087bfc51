"""Faults of TMA descriptors: rewritten in use, wrong boxes, orders, bounds and alignments, ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from gluonsim import Kind, Result, simulate
from mutants.committed import changed_within as edited
from mutants.handwritten import faults_of
from mutants.pages import TensorDescriptor, described, gl, integers

K = Kind
GROUPS = [40, 60, 100, 148]
"""The row at which each group begins, and the end of the last one: each group ends within a box."""


def numbers(*shape: int) -> torch.Tensor:
    """Return a different number for each element."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def copied(module: Any, schedules: Sequence[str]) -> Result:
    """Copy three tiles, the last one of 8 rows, of matrices that have more rows and columns."""
    x, y = numbers(200, 96), torch.full((200, 96), -1.0)
    wanted = y.clone()
    wanted[:72, :64] = x[:72, :64]
    launched = simulate(module.copied_kernel, schedules=schedules, expect={"y_ptr": wanted})
    return launched[1](x, y, 72, 64, 96, 3)


def boxes(module: Any, schedules: Sequence[str]) -> Result:
    """Copy eight boxes by one program, four times around two pages; the last ones cross both edges."""
    x, y = numbers(100, 112), torch.zeros(100, 112)
    launched = simulate(module.boxes_kernel, schedules=schedules, expect={"y_desc": x})
    return launched[1](described(x, [32, 64]), described(y, [32, 64]), 4, 2)


def groups(module: Any, schedules: Sequence[str]) -> Result:
    """Multiply three groups of rows, one in each program, by 0, 1 and 2; no other row may change."""
    x, y = integers(200, 64).half(), torch.full((200, 64), -1.0).half()
    wanted = y.clone()
    for group, (first, end) in enumerate(pairwise(GROUPS)):
        wanted[first:end] = x[first:end] * group
    layout = gl.NVMMASharedLayout.get_default_for([1, 1, 32, 64], gl.float16)

    def ragged(tensor: torch.Tensor) -> Any:
        shape = [0x7FFF0000, 0x7FFF0000, 0x40000000, 64]
        return TensorDescriptor(tensor, shape, [2**34 - 64, 64, 64, 1], [1, 1, 32, 64], layout)

    launched = simulate(module.groups_kernel, schedules=schedules, expect={"y_desc": wanted})
    return launched[len(GROUPS) - 1](ragged(x), ragged(y), torch.tensor(GROUPS).int())


LAUNCHES = {"copied": copied, "boxes": boxes, "groups": groups}
own, box, group = (faults_of("descriptors", f"{name}_kernel", launch) for name, launch in LAUNCHES.items())
X_DESC = """        x_desc = tma.make_tensor_descriptor(
            x_ptr + first * stride, [rows - first, columns], [stride, 1], [32, 64], LAYOUT
        )
"""
Y_DESC = X_DESC.replace("x_", "y_")
STORE_WAIT = "        tma.store_wait(0)\n"
EXPECT = "        mbarrier.expect(ready, x_desc.nbytes_per_cta)\n"
LOAD_WAIT = "        mbarrier.wait(ready, tile & 1)\n"
MAKE_X, MAKE_Y = "x_ptr + first * stride", "y_ptr + first * stride"
LOAD, STORE = "tma.async_load(x_desc", "tma.async_store(y_desc"
BOX_LOAD, BOX_STORE = f"{LOAD}, [row, column]", f"{STORE}, [row, column]"
NUMBERS = K.WRONG_NUMBERS
PLACE = "place = [0x40000000, first + size, 0x40000000 - size + row, 0]"


OUT_OF_BOUNDS = "out-of-bounds"
REWRITTEN = {
    "descriptor_of_a_store_rewritten": own(
        K.WRITE_AFTER_READ,
        "y_ptr",
        "y_desc = tma.make_tensor_descriptor(",
        (STORE_WAIT, ""),
        also=((K.WRITE_AFTER_READ, "page", LOAD),),
    ),
}
WRONG = {
    "descriptor_of_rows_of_another_length": own(
        NUMBERS, "y_ptr", "", edited(X_DESC, "first * stride,", "first * columns,")
    ),
    "descriptor_over_rows_behind_the_tensor": own(
        OUT_OF_BOUNDS,
        "",
        "tma.async_load(x_desc",
        edited(X_DESC, "first * stride, [rows - first,", "(first + 128) * stride, [rows,"),
    ),
    "descriptor_with_rows_for_columns": own(
        NUMBERS, "y_ptr", "", edited(X_DESC, "[rows - first, columns]", "[columns, rows - first]")
    ),
    "descriptor_of_a_row_less": own(NUMBERS, "y_ptr", "", edited(Y_DESC, "rows - first", "rows - first - 1")),
    "descriptor_of_rows_that_are_not_left": own(NUMBERS, "y_ptr", "", edited(Y_DESC, "rows - first", "rows")),
    "descriptor_base_between_16_bytes": own(
        K.UNALIGNED_TRANSFER,
        "x_ptr",
        "x_desc = tma",
        edited(X_DESC, "first * stride,", "first * stride + 1,"),
    ),
    "descriptor_stride_between_16_bytes": own(
        K.UNALIGNED_TRANSFER, "y_ptr", "y_desc = tma", edited(Y_DESC, "[stride, 1]", "[stride - 1, 1]")
    ),
    "descriptor_box_of_half_a_page": own(
        "lowering-failed", "", STORE, edited(Y_DESC, "[32, 64]", "[16, 64]")
    ),
    "descriptor_box_of_another_shape": own(
        "simulator-unsupported", "", STORE, edited(Y_DESC, "[32, 64]", "[64, 32]")
    ),
    "boxes_with_rows_for_columns": box(
        K.GLOBAL_RACE, "y_desc", STORE, edited(BOX_STORE, "row, column", "column, row")
    ),
    "boxes_between_16_bytes": box(
        K.UNALIGNED_TRANSFER, "x_desc", LOAD, edited(BOX_LOAD, "column", "column + 2")
    ),
    "boxes_half_of_the_bytes_expected": box(
        K.BYTE_COUNT, "ready", "mbarrier.expect(", ("x_desc.nbytes_per_cta", "x_desc.nbytes_per_cta // 2")
    ),
    "boxes_of_the_next_row_of_tiles": box(
        NUMBERS, "y_desc", "", ("tile // tiles_n * rows", "(tile // tiles_n + 1) * rows")
    ),
    "boxes_half_a_box_apart": box(
        NUMBERS, "y_desc", "", ("tile % tiles_n * columns", "tile % tiles_n * (columns // 2)")
    ),
    "boxes_a_page_too_early": box(
        K.WRITE_AFTER_READ, "page", LOAD, ("tma.store_wait(1)", "tma.store_wait(2)")
    ),
}
RAGGED = {
    "groups_one_row_late": group(NUMBERS, "y_desc", "", edited(PLACE, "size + row", "size + row + 1")),
    "groups_spare_dimension_off_by_one": group(
        NUMBERS, "y_desc", "", edited(PLACE, "first + size", "first + size + 1")
    ),
    "groups_rows_before_the_first": group(
        K.GLOBAL_RACE, "y_desc", STORE, edited(PLACE, "0x40000000 - size", "0x40000000 - size - 32")
    ),
    "groups_bounded_by_a_box": group(
        K.GLOBAL_RACE, "y_desc", STORE, ("size = end - first", "size = (end - first + 31) // 32 * 32")
    ),
    "groups_all_from_the_first_row": group(
        K.GLOBAL_RACE, "y_desc", STORE, ("gl.load(ends_ptr + group)", "gl.load(ends_ptr)")
    ),
    "groups_address_not_wrapped_around": group(
        OUT_OF_BOUNDS, "", LOAD, edited(PLACE, "[0x40000000,", "[0x3fffffff,")
    ),
    "groups_without_a_bound": group(
        K.GLOBAL_RACE, "y_desc", STORE, (PLACE, "place = [0, first + row, 0, 0]")
    ),
}
FAULTS = REWRITTEN | WRONG | RAGGED
