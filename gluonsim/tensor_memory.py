"""Tensor memory of Blackwell: the lane and the bytes of each element, and buffers laid out so."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from gemmgen.errors import GemmgenError
from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Encoding, MemDescType

COLUMN_BYTES = 4
PITCH_BYTES = COLUMN_BYTES * 4096
"""From lane to lane. More than a lane has: a kernel that takes too much is reported, and still runs."""

SCALES = "ttng.tensor_memory_scales_encoding"
LANES = 128
ACCUMULATOR = "ttng.tensor_memory_encoding"


def tensor_memory_index(operation: Operation) -> Tensor:
    """Return the first byte of each element of an allocation, lanes apart by the pitch.

    Raises:
        GemmgenError: The layout is not known.
    """
    type_ = operation.result_types[0]
    assert isinstance(type_, MemDescType)
    first_lane: int = operation.attributes["tensor_memory_row_offset"]
    first_column: int = operation.attributes["tensor_memory_col_offset"]
    try:
        return index_from(type_, first_lane * PITCH_BYTES + first_column * COLUMN_BYTES)
    except GemmgenError as error:
        raise refusal(error.diagnostics[0].message, operation.location) from error


def index_from(type_: MemDescType, start: int) -> Tensor:
    """Return the first byte of each element of a buffer that begins at a byte.

    Raises:
        GemmgenError: The layout is not known.
    """
    encoding = type_.encoding
    *slots, rows, columns = type_.local_shape
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    if encoding is not None and encoding.kind == SCALES:
        lane, byte, slot_bytes = _scales(row, column, rows, columns)
    elif encoding is not None and encoding.kind == ACCUMULATOR:
        lane, byte, slot_bytes = _matrix(row, column, type_, encoding)
    else:
        raise refusal("this layout of tensor memory is not known to the simulator")
    slot = torch.arange(prod(slots)).reshape(*slots, 1, 1) * slot_bytes
    return start + slot + lane * PITCH_BYTES + byte


def is_plain(type_: MemDescType) -> bool:
    """Return whether each row of a buffer is one lane, with its elements side by side."""
    encoding = type_.encoding
    return (
        encoding is not None
        and encoding.kind == ACCUMULATOR
        and encoding.fields["blockM"] == type_.local_shape[-2] == LANES
        and not encoding.fields.get("fp4Padded")
    )


def allocated(type_: MemDescType, poison: Callable[[Tensor], None]) -> Tensor:
    """Return memory for a buffer, filled by `poison`; a plain one is laid out as the hardware has it."""
    if not is_plain(type_):
        data = torch.empty(type_.local_shape, dtype=type_.dtype)
        poison(data)
        return data
    lane_bytes = prod(type_.local_shape[:-2]) * _slot_bytes(type_)
    lanes = torch.empty(LANES * lane_bytes // type_.dtype.itemsize, dtype=type_.dtype)
    poison(lanes)
    return lanes.as_strided(type_.local_shape, _strides(type_, lane_bytes))


def reinterpreted(data: Tensor, type_: MemDescType) -> Tensor:
    """Return a plain buffer of other elements over the bytes of another plain buffer, from its first one on.

    Raises:
        GemmgenError: It reaches beyond the memory of the other buffer.
    """
    lane_bytes = data.stride(-2) * data.element_size()
    first = int(data.storage_offset()) * data.element_size()
    if first % lane_bytes + prod(type_.local_shape[:-2]) * _slot_bytes(type_) > lane_bytes:
        raise refusal("tensor memory is reinterpreted beyond the end of its allocation", code="out-of-bounds")
    flat = torch.empty(0, dtype=type_.dtype).set_(data.untyped_storage())
    return flat.as_strided(type_.local_shape, _strides(type_, lane_bytes), first // type_.dtype.itemsize)


def _slot_bytes(type_: MemDescType) -> int:
    assert type_.encoding is not None
    stride: int = type_.encoding.fields["colStride"]
    return type_.local_shape[-1] * type_.dtype.itemsize * stride


def _strides(type_: MemDescType, lane_bytes: int) -> tuple[int, ...]:
    """Return the strides in elements: slots lie side by side in the lanes."""
    assert type_.encoding is not None
    size, step = type_.dtype.itemsize, _slot_bytes(type_) // type_.dtype.itemsize
    slots: list[int] = []
    for extent in reversed(type_.local_shape[:-2]):
        slots.insert(0, step)
        step *= extent
    return (*slots, lane_bytes // size, type_.encoding.fields["colStride"])


def _matrix(
    row: Tensor, column: Tensor, type_: MemDescType, encoding: Encoding
) -> tuple[Tensor, Tensor, int]:
    """Return lane and byte of each element, and the bytes of a lane that one matrix takes [ptx]."""
    fields = encoding.fields
    rows, columns = type_.local_shape[-2:]
    element_bytes: int = type_.dtype.itemsize * fields["colStride"]
    block_rows: int = fields["blockM"]
    block_columns = min(fields["blockN"], columns)
    if fields.get("fp4Padded"):
        raise refusal("tensor memory with fp4_padded is not known to the simulator")
    if rows % block_rows or columns % block_columns:
        raise refusal(f"tensor memory of {rows} rows in blocks of {block_rows} is not known")
    tall, wide = rows // block_rows, columns // block_columns
    block_row, block_column = row // block_rows, column // block_columns
    row, column = row % block_rows, column % block_columns
    if block_rows == 128:
        lane, width = row, block_columns
    elif fields.get("twoCTAs"):  # the right half of 64 rows lies in the lanes that they leave free
        width = block_columns // 2
        lane, column = row + column // width * 64, column % width
    else:
        # Sixteen rows in each quarter of the lanes; the other sixteen lanes are the next block's.
        lane, width = row // 16 * 32 + row % 16, block_columns
        if tall > 1:
            lane, block_row, tall = lane + block_row % 2 * 16, block_row // 2, -(-tall // 2)
        elif wide > 1:
            lane, block_column, wide = lane + block_column % 2 * 16, block_column // 2, -(-wide // 2)
    # Blocks lie side by side, those of a column of blocks first.
    byte = ((block_column * tall + block_row) * width + column) * element_bytes
    return lane + torch.zeros_like(byte), byte + torch.zeros_like(lane), tall * wide * width * element_bytes


def _scales(row: Tensor, column: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, int]:
    """Return lane and byte of each scale: 32 rows by 4 scales in a column, four such a block [ptx].

    The other three quarters of the lanes hold copies, which are always written and read with these.
    """
    row_blocks, column_blocks = -(-rows // 128), -(-columns // 4)
    block = column // 4 * row_blocks + row // 128
    block_columns = min(4, -(-rows // 32))
    byte = (block * block_columns + row // 32 % 4) * COLUMN_BYTES + column % 4
    return (
        row % 32 + torch.zeros_like(column),
        byte,
        row_blocks * column_blocks * block_columns * COLUMN_BYTES,
    )
