"""Where each element of a kernel's tiles lies: its byte of shared memory, its thread and register, its lane.

This is arithmetic on the plan's values, without a compiler. Every function here is linear in the bits of a
row and a column, over XOR, so that a few bases say all of it. A test holds each element of each committed
kernel against the compiler's own layouts.

Sources, cited by their tag:

* [ptx] PTX ISA 9.0, sections ``wgmma.mma_async`` (shared memory layouts, register fragments), ``tcgen05``
  (data path layouts, scales) and ``cp.async.bulk.tensor`` (swizzling modes).
* [gluon] Triton 3.9.0, by its linear layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.hardware import SCALE_COLUMNS, SCALE_ROWS, TCGEN05, WGMMA, DType
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.storage import SWIZZLE_ROWS, SharedBuffer
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Operand

UNIT_BYTES = 16
"""[ptx] Bytes that a swizzle moves as a whole: a row of a core matrix."""
LINE_BYTES = 128
"""All 32 banks of shared memory, 4 bytes each."""
BANK_BYTES = 4
PADDED_BYTES = 8
"""[ptx] Of a unit that 4-bit elements fill, where TMA pads them."""
LANES = 32
"""Threads of a warp."""
QUAD = 4
"""Threads of a warp that share a row of a register fragment [ptx]."""
OCTET = 8
"""Rows of a core matrix, and of a register fragment between two registers [ptx]."""

Bases = tuple[int, ...]
"""The place that each bit of an index contributes; places of several bits are combined by XOR."""


def bases_of(place: Callable[[int], int], extent: int) -> Bases:
    """Return where the bits of an index below `extent`, a power of two, lead."""
    return tuple(place(1 << bit) for bit in range(extent.bit_length() - 1))


@dataclass(frozen=True)
class SharedTile:
    """A tile in the shared memory of one CTA, as it is stored: rows of contiguous elements.

    A row that is wider than the swizzle is cut into *spans* as wide as it. A span of all rows is in one
    piece, and eight rows of it are the *atom* in which the swizzle permutes units of 16 bytes. Eight rows of
    one such unit are a *core matrix*.
    """

    name: str
    """Name of the buffer."""
    tensor: str
    dtype: str
    row: str
    """The dimension along which its rows lie: m, n or k."""
    column: str
    rows: int
    columns: int
    """In elements."""
    bits: int
    """Bits of an element; elements below 8 bits share a byte."""
    swizzle_bytes: int
    padded: bool
    address: int
    """First byte of the first slot in the CTA's shared memory."""
    slots: int

    @property
    def elements_per_unit(self) -> int:
        """Elements in 16 bytes; padding takes half of them."""
        return (PADDED_BYTES if self.padded else UNIT_BYTES) * 8 // self.bits

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, over all spans."""
        return max(1, self.columns * self.bits // 8 * (2 if self.padded else 1))

    @property
    def span_bytes(self) -> int:
        """Bytes of a row that lie together: the swizzle's, or all of them without one."""
        return self.swizzle_bytes or self.row_bytes

    @property
    def spans(self) -> int:
        """Spans of a row."""
        return max(1, self.row_bytes // self.span_bytes)

    @property
    def span_elements(self) -> int:
        """Elements of a row that lie together."""
        return self.columns // self.spans

    @property
    def bytes(self) -> int:
        """Bytes of one slot."""
        return self.rows * self.row_bytes

    @property
    def atom_rows(self) -> int:
        """Rows after which the pattern repeats; a tile may have fewer."""
        return min(SWIZZLE_ROWS, self.rows)

    @property
    def stride_bytes(self) -> int:
        """From eight rows to the next eight: the stride offset of the MMA's descriptor [ptx]."""
        return SWIZZLE_ROWS * self.span_bytes

    @property
    def leading_bytes(self) -> int:
        """From a span to the next: where M or N is contiguous the descriptor's leading offset [ptx]."""
        return self.rows * self.span_bytes

    def byte(self, row: int, column: int) -> int:
        """Return the byte of an element in its slot; of two elements of 4 bits the first has the low half."""
        x = column * self.bits // 8
        if self.padded:
            x = x // PADDED_BYTES * UNIT_BYTES + x % PADDED_BYTES
        span, x = divmod(x, self.span_bytes)
        unit, within = divmod(x, UNIT_BYTES)
        if self.swizzle_bytes:
            # [ptx] The number of the line of 128 bytes, as far as there are units to permute.
            unit ^= row * self.span_bytes // LINE_BYTES % (self.swizzle_bytes // UNIT_BYTES)
        return span * self.leading_bytes + row * self.span_bytes + unit * UNIT_BYTES + within

    @cached_property
    def bases(self) -> tuple[Bases, Bases]:
        """Bases of a row and of a column: the XOR of both places is an element's byte in its slot."""
        return bases_of(lambda row: self.byte(row, 0), self.rows), bases_of(
            lambda column: self.byte(0, column), self.columns
        )


@dataclass(frozen=True)
class Thread:
    """The thread and the register of an element: the number counts elements, one or more in each 32 bits."""

    warp: int
    """Number of the warp in its tile, from 0."""
    lane: int
    element: int


@dataclass(frozen=True)
class RegisterTile:
    """A tile in the registers of the warps of one consumer, in one CTA."""

    name: str
    dtype: str
    bits: int
    """Bits of an element."""
    row: str
    """The dimension of D, or of A, along the instruction's rows."""
    column: str
    rows: int
    columns: int
    warps: tuple[int, int]
    """Along its rows and columns."""
    group: int
    """Columns of one warp; the columns of the next warp follow."""
    pair: int = 2
    """Elements side by side that one thread holds."""
    copies: bool = False
    """True if each warp along the columns holds the whole tile."""

    @property
    def elements(self) -> int:
        """Elements of one thread."""
        across = 1 if self.copies else self.warps[1]
        return self.rows * self.columns // (LANES * self.warps[0] * across)

    @property
    def registers(self) -> int:
        """Registers of one thread, 32 bits each."""
        return self.elements * self.bits // 32

    def place(self, row: int, column: int) -> Thread:
        """Return the thread and the register that hold an element.

        [ptx] A warp holds 16 rows. Its threads lie in eight rows of four, each with `pair` elements side by
        side; the next elements of a thread are eight rows further down, then in the next columns.
        """
        down, along = self.warps
        repeat, row = divmod(row, WGMMA.rows_per_warp * down)
        warp, row = divmod(row, WGMMA.rows_per_warp)
        if not self.copies:
            step, column = divmod(column, self.group * along)
            across, column = divmod(column, self.group)
            warp += down * across
            groups = self.columns // (self.group * along)
        else:
            step, groups = 0, 1
        half, row = divmod(row, OCTET)
        block, column = divmod(column, QUAD * self.pair)
        lane, within = divmod(column, self.pair)
        blocks = self.group // (QUAD * self.pair)
        number = ((repeat * groups + step) * blocks + block) * 2 + half
        return Thread(warp, row * QUAD + lane, number * self.pair + within)

    @cached_property
    def bases(self) -> tuple[Bases, Bases]:
        """Bases of a row and of a column, as ``warp << 20 | lane << 12 | element``."""

        def packed(row: int, column: int) -> int:
            found = self.place(row, column)
            return found.warp << 20 | found.lane << 12 | found.element

        return bases_of(lambda row: packed(row, 0), self.rows), bases_of(
            lambda column: packed(0, column), self.columns
        )


@dataclass(frozen=True)
class TensorTile:
    """The sums of one tile in tensor memory: a row is a lane, a sum of 32 bits a column [ptx]."""

    name: str
    rows: int
    columns: int
    first_column: int
    """First column of the allocation."""
    slots: int

    def lane(self, row: int) -> int:
        """Return the lane of a row: 64 rows fill half of each warp's lanes."""
        if self.rows == TCGEN05.m[0]:
            return row // WGMMA.rows_per_warp * LANES + row % WGMMA.rows_per_warp
        return row

    def column(self, column: int, slot: int = 0) -> int:
        """Return the column of tensor memory of a column of the tile."""
        return self.first_column + slot * self.columns + column

    @cached_property
    def bases(self) -> tuple[Bases, Bases]:
        """Bases of a row and of a column, as ``lane << 12 | column``, the first column not counted."""
        return bases_of(lambda row: self.lane(row) << 12, self.rows), bases_of(
            lambda column: column, self.columns
        )


@dataclass(frozen=True)
class ScaleTile:
    """The scales of one K step in tensor memory, a byte each [ptx].

    A column holds four scales of each of 32 rows; each quarter of the lanes has a copy.
    """

    name: str
    tensor: str
    dtype: str
    rows: int
    columns: int
    """Scales of a row."""
    vector: int
    """Elements of K that share one."""
    first_column: int

    def lane(self, row: int) -> int:
        """Return the first lane that has the scales of a row; copies are 32, 64 and 96 lanes further."""
        return row % LANES

    def byte(self, row: int, column: int) -> int:
        """Return the byte of a scale in its lane, counted from the first column."""
        block = column // SCALE_COLUMNS * -(-self.rows // SCALE_ROWS) + row // SCALE_ROWS
        of_block = min(QUAD, -(-self.rows // LANES))
        return (block * of_block + row // LANES % QUAD) * BANK_BYTES + column % SCALE_COLUMNS

    @cached_property
    def bases(self) -> tuple[Bases, Bases]:
        """Bases of a row and of a column, as ``lane << 12 | byte``."""
        return bases_of(lambda row: self.lane(row) << 12 | self.byte(row, 0), self.rows), bases_of(
            lambda column: self.byte(0, column), self.columns
        )


# --- of a kernel


def shared_tiles(kernel: Kernel) -> tuple[SharedTile, ...]:
    """Return the matrices in shared memory, in the order in which the kernel allocates them."""
    return tuple(_shared_tiles(kernel))


def _shared_tiles(kernel: Kernel) -> Iterator[SharedTile]:
    addresses = {allocation.name: begin for allocation, begin in kernel.shared_memory.placed}
    problem, parts = kernel.problem, iter(_columns_of_b(kernel))
    for buffer in kernel.shared_buffers:
        tensor, address = buffer.tensor, addresses[buffer.name]
        if tensor == "a":
            yield _operand(buffer, "m", _rows(kernel), problem.a, kernel.cta_tile_k, address)
        elif tensor == "b":
            yield _operand(buffer, "n", next(parts), problem.b, kernel.cta_tile_k, address)
        elif tensor in ("d", "saved"):
            matrices = problem.b_blocks if tensor == "saved" else problem.d_blocks
            yield _subtile(kernel, buffer, problem.d, address, matrices)
        elif tensor == "c" and problem.c:
            yield _subtile(kernel, buffer, problem.c, address, problem.d_blocks)


def _rows(kernel: Kernel) -> int:
    """Return the rows of a tile of A and D in one buffer of one CTA."""
    return kernel.cta_consumer_tile_m if isinstance(kernel, WgmmaKernel) else kernel.cta_tile_m


def _columns_of_b(kernel: Kernel) -> tuple[int, ...]:
    """Return the columns of B in each of its buffers, in one CTA."""
    return (kernel.cta_b_columns,) if isinstance(kernel, Tcgen05Kernel) else kernel.column_parts


def _operand(
    buffer: SharedBuffer, outer: str, extent: int, operand: Operand, depth: int, address: int
) -> SharedTile:
    along_k = operand.major == "k"
    return SharedTile(
        name=buffer.name,
        tensor=buffer.tensor.upper(),
        dtype=operand.dtype.name,
        row=outer if along_k else "k",
        column="k" if along_k else outer,
        rows=extent if along_k else depth,
        columns=depth if along_k else extent,
        bits=operand.dtype.bits,
        swizzle_bytes=buffer.swizzle_bytes,
        padded=operand.padded,
        address=address,
        slots=buffer.ring.depth if buffer.ring else 1,
    )


def _subtile(kernel: Kernel, buffer: SharedBuffer, dtype: DType, address: int, matrices: int) -> SharedTile:
    """Return a sub-tile, which has columns of several matrices if these take turns in memory."""
    columns = min(kernel.subtile_n, kernel.cta_tile_n)
    return SharedTile(
        name=buffer.name,
        tensor=buffer.operand.upper(),
        dtype=dtype.name,
        row="m",
        column="n",
        rows=_rows(kernel),
        columns=columns * (matrices if kernel.problem.interleaved else 1),
        bits=dtype.bits,
        swizzle_bytes=buffer.swizzle_bytes,
        padded=False,
        address=address,
        slots=buffer.ring.depth if buffer.ring else 1,
    )


def accumulators(kernel: Kernel) -> tuple[RegisterTile, ...]:
    """Return the sums of a consumer, one tile for each part of D's columns; none where they are elsewhere."""
    if not isinstance(kernel, WgmmaKernel):
        return ()
    rows, _ = kernel.consumer_extents
    numbered = len(kernel.mma_parts) > 1
    return tuple(
        RegisterTile(
            name=f"accumulator_{number}" if numbered else "accumulator",
            dtype=kernel.problem.accumulator.name,
            bits=kernel.problem.accumulator.bits,
            row=kernel.mma.left.axis,
            column=kernel.mma.right.axis,
            rows=rows,
            columns=columns,
            warps=kernel.warps_across,
            group=n,
        )
        for number, (columns, (_, n, _)) in enumerate(zip(kernel.mma_parts, kernel.mma_shapes, strict=True))
    )


def operand_in_registers(kernel: Kernel) -> RegisterTile | None:
    """Return A's tile of one K step in a consumer's registers, where it is there."""
    if not isinstance(kernel, WgmmaKernel) or kernel.a_source == "shared":
        return None
    dtype = kernel.problem.a.dtype
    return RegisterTile(
        name="A",
        dtype=dtype.name,
        bits=dtype.bits,
        row="m",
        column="k",
        rows=kernel.cta_consumer_tile_m,
        columns=kernel.cta_tile_k,
        warps=kernel.warps_across,
        group=kernel.cta_tile_k,
        pair=32 // dtype.bits,
        copies=True,
    )


def first_columns(kernel: Kernel) -> dict[str, int]:
    """Return the first column of each buffer in tensor memory: one behind the other [gluon]."""
    found: dict[str, int] = {}
    taken = 0
    for buffer in kernel.tensor_memory.buffers:
        found[buffer.name] = taken
        taken += buffer.columns
    return found


def tensor_tile(kernel: Kernel) -> TensorTile | None:
    """Return the sums in tensor memory, where they are there."""
    if not isinstance(kernel, Tcgen05Kernel):
        return None
    buffer = kernel.resources.accumulator
    return TensorTile(
        name=buffer.name,
        rows=kernel.cta_tile_m,
        columns=kernel.cta_tile_n,
        first_column=first_columns(kernel)[buffer.name],
        slots=kernel.accumulators,
    )


def scale_tiles(kernel: Kernel) -> tuple[ScaleTile, ...]:
    """Return the scales of A and of B in tensor memory; none without any."""
    if not isinstance(kernel, Tcgen05Kernel):
        return ()
    first = first_columns(kernel)
    sources = (("a", kernel.problem.a, kernel.cta_tile_m), ("b", kernel.problem.b, kernel.cta_tile_n))
    return tuple(
        ScaleTile(
            name=f"{tensor}_scale_tmem",
            tensor=tensor.upper(),
            dtype=operand.scale.dtype.name,
            rows=rows,
            columns=kernel.scale_columns(operand),
            vector=operand.scale.vector,
            first_column=first[f"{tensor}_scale_tmem"],
        )
        for tensor, operand, rows in sources
        if operand.scale
    )
