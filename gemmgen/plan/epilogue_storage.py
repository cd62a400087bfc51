"""Buffers, barriers and arguments of an epilogue: the tensors that it reads and the tiles of D."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.hardware import DType
from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.roles import Argument, Passed
from gemmgen.plan.sizes import Geometry
from gemmgen.plan.storage import Barrier, Extent, Ring, SharedBuffer, numbered
from gemmgen.problem import Matmul
from gemmgen.problem.operations import OPERATIONS


@dataclass(frozen=True)
class EpilogueStorage:
    """The buffers and barriers of one epilogue: the tensors that it reads, and the tiles of D."""

    c: SharedBuffer | None
    vectors: tuple[SharedBuffer, ...]
    d: SharedBuffer
    saved: SharedBuffer | None
    c_ready: Barrier | None
    vectors_ready: Barrier | None

    @property
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in the order in which a kernel with one epilogue allocates them."""
        return (*((self.c,) if self.c else ()), *self.vectors, *self.stored)

    @property
    def stored(self) -> tuple[SharedBuffer, ...]:
        """The buffers through which it stores D, and sums if they are saved."""
        return (self.d, *((self.saved,) if self.saved else ()))

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers in the order in which the kernel allocates them."""
        return tuple(barrier for barrier in (self.c_ready, self.vectors_ready) if barrier)

    @property
    def loaded(self) -> tuple[Passed, ...]:
        """The buffers that it reads, and then their barriers."""
        values = (self.c, *self.vectors, *self.barriers)
        return tuple(value for value in values if value)


def epilogue_storage(
    kernel: Geometry,
    rows: Extent,
    vector_columns: tuple[Extent, int] | None = None,
    number: int | None = None,
) -> EpilogueStorage:
    """Return the buffers and barriers of the only epilogue, or of one consumer's if it has a number.

    `rows` are the rows of its tile over all CTAs; `vector_columns` are the elements of a column operand over
    all CTAs and in one CTA, if these are not the tile's columns.
    """
    problem, cta_rows = kernel.problem, kernel.epilogue_rows
    ring = Ring(Extent(kernel.epilogue_buffers, "epilogue_buffers"), indexed=kernel.epilogue_buffers > 1)
    tile_columns = Extent(kernel.program_tile_n, "tile_n")
    columns = Extent(kernel.subtile_n, "subtile_n") if kernel.subtiles > 1 else tile_columns
    slots, moved = ring, columns
    if problem.d_in_blocks:
        slots = Ring(Extent(problem.d_blocks * kernel.epilogue_buffers, "block_slots"))
    elif problem.d_blocks > 1:
        moved = Extent(problem.d_blocks * columns.size, "d_columns")

    def saved() -> SharedBuffer:
        wide = Extent(problem.b_blocks * columns.size, "saved_columns") if problem.interleaved else columns
        count = kernel.epilogue_buffers * (1 if problem.interleaved else problem.b_blocks)
        each = ring if problem.interleaved else Ring(Extent(count, "saved_slots"))
        contents = f"{count} x {cta_rows} x {kernel.saved_n} {problem.d.name}"
        return SharedBuffer(
            numbered("saved_smem", number),
            "saved",
            (rows, wide),
            kernel.epilogue_buffers * problem.b_blocks * kernel.subtile_bytes(problem.d),
            f"{contents}, swizzle {kernel.saved_swizzle_bytes}",
            each,
            kernel.saved_swizzle_bytes,
        )

    def subtile(operand: str, dtype: DType, swizzle_bytes: int) -> SharedBuffer:
        contents = f"{slots.depth} x {cta_rows} x {kernel.moved_n} {dtype.name}"
        return SharedBuffer(
            numbered(f"{operand}_smem", number),
            operand,
            (rows, moved),
            kernel.epilogue_buffers * kernel.subtile_bytes(dtype),
            f"{contents}, swizzle {swizzle_bytes}",
            slots,
            swizzle_bytes,
        )

    def vector(name: str) -> SharedBuffer:
        extent, elements = vector_columns or (tile_columns, kernel.cta_tile_n)
        block = None
        if name in problem.parted_vectors:
            extent = Extent(kernel.loaded_n, "product_n")
            block = (tile_columns,) if problem.in_blocks else None
        if OPERATIONS[name].along == "m":
            extent, elements = rows, cta_rows
        dtype, own = problem.vector_dtype(name), numbered(f"{name}_smem", number)
        contents = f"{elements} {dtype.name}"
        return SharedBuffer(own, name, (extent,), elements * dtype.bytes, contents, loaded_shape=block)

    c_ready = vectors_ready = None
    if problem.c:
        c_ready = Barrier(numbered("c_ready", number), ring, "from TMA: the buffer holds a part of C")
    if TensorAccess(problem).tma_vectors:
        once = Ring(Extent(1), indexed=False)
        meaning = "from TMA: the epilogue's row and column operands have arrived"
        vectors_ready = Barrier(numbered("vectors_ready", number), once, meaning)
    return EpilogueStorage(
        c=subtile("c", problem.c, kernel.c_swizzle_bytes) if problem.c else None,
        vectors=tuple(map(vector, TensorAccess(problem).tma_vectors)),
        d=subtile("d", problem.d, kernel.d_swizzle_bytes),
        saved=saved() if problem.saves else None,
        c_ready=c_ready,
        vectors_ready=vectors_ready,
    )


def epilogue_arguments(problem: Matmul) -> tuple[Argument, ...]:
    """Return the tensors that an epilogue reads, in order."""
    c = (Argument("c", "matrix", problem.c),) if problem.c else ()
    kind = "group_vector" if problem.groups else "vector"
    vectors = (
        Argument(name, kind, problem.vector_dtype(name), OPERATIONS[name].along) for name in problem.vectors
    )
    scalar = (Argument("tensor_scale", "scalar", DTYPES["fp32"]),) if problem.scalar else ()
    return (*c, *vectors, *scalar)
