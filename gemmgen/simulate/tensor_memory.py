"""Where allocations lie in tensor memory: 128 lanes of 32-bit columns in each CTA."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from gemmgen.simulate.errors import refusal
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.types import Encoding, MemDescType

COLUMN_BYTES = 4
PITCH_BYTES = COLUMN_BYTES * 4096
"""From lane to lane. More than a lane has: a kernel that takes too much is reported, and still runs."""

SCALES = "ttng.tensor_memory_scales_encoding"
ACCUMULATOR = "ttng.tensor_memory_encoding"


def tensor_memory_index(operation: Operation) -> Tensor:
    """Return the first byte of each element of an allocation, lanes apart by the pitch.

    Raises:
        GemmgenError: The layout is not known.
    """
    type_ = operation.result_types[0]
    assert isinstance(type_, MemDescType)
    encoding = type_.encoding
    *slots, rows, columns = type_.local_shape
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    if encoding is not None and encoding.kind == SCALES:
        lane, byte, slot_bytes = _scales(row, column, rows, columns)
    elif encoding is not None and encoding.kind == ACCUMULATOR:
        lane, byte, slot_bytes = _matrix(row, column, type_, encoding)
    else:
        raise refusal("this layout of tensor memory is not known to the simulator", operation.location)
    first_lane: int = operation.attributes["tensor_memory_row_offset"]
    first_column: int = operation.attributes["tensor_memory_col_offset"]
    start = first_lane * PITCH_BYTES + first_column * COLUMN_BYTES
    slot = torch.arange(prod(slots)).reshape(*slots, 1, 1) * slot_bytes
    return start + slot + lane * PITCH_BYTES + byte


def _matrix(
    row: Tensor, column: Tensor, type_: MemDescType, encoding: Encoding
) -> tuple[Tensor, Tensor, int]:
    """Return lane and byte of each element, and the bytes of a lane that one matrix takes [ptx]."""
    fields = encoding.fields
    rows, columns = type_.local_shape[-2:]
    element_bytes: int = type_.dtype.itemsize * fields["colStride"]
    if rows != fields["blockM"] or fields.get("fp4Padded"):
        raise refusal(f"tensor memory of {rows} rows in blocks of {fields['blockM']} is not known")
    if rows == 128:
        return row, column * element_bytes, columns * element_bytes
    if fields.get("twoCTAs"):  # the right half of 64 rows lies in the lanes that they leave free
        half = columns // 2
        return row + column // half * 64, column % half * element_bytes, half * element_bytes
    # Sixteen rows in each quarter of the lanes.
    return row // 16 * 32 + row % 16, column * element_bytes, columns * element_bytes


def _scales(row: Tensor, column: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, int]:
    """Return lane and byte of each scale: 128 rows by 4 scales in four columns, 32 lanes [ptx].

    The other three quarters of the lanes hold copies, which are always written and read with these.
    """
    row_blocks, column_blocks = -(-rows // 128), -(-columns // 4)
    block = column // 4 * row_blocks + row // 128
    byte = (block * 4 + row // 32 % 4) * COLUMN_BYTES + column % 4
    return row % 32 + torch.zeros_like(column), byte, row_blocks * column_blocks * 4 * COLUMN_BYTES
