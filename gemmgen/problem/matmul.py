"""The matmul that a kernel computes, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gemmgen.hardware import DTYPES, PADDED_K, DType, ScaleFormat
from gemmgen.hardware.elements import MOST_SCALED, WEIGHT_BLOCK, WEIGHT_TURN, Applied
from gemmgen.problem.canonical import digest
from gemmgen.problem.epilogue import PLAIN, Epilogue, Load, Value
from gemmgen.problem.extents import Shape
from gemmgen.problem.groups import Groups
from gemmgen.problem.observation import flops
from gemmgen.problem.operations import OPERATIONS, Operation, OpParameter

TMA_PLACE_BITS = 128
"""Bits of the elements before the first one that TMA reads of a row: a multiple of this number."""


@dataclass(frozen=True)
class BlockScale:
    """The scales of an operand: one for each block of rows, as its format has them, and ``vector`` of K."""

    format: ScaleFormat
    dtype: DType
    """As the spec has it, which a rule holds against the format."""
    vector: int

    @property
    def unit(self) -> int:
        """The scales in 16 bytes: rows of scales begin at multiples of this number."""
        return TMA_PLACE_BITS // self.dtype.bits

    @property
    def words(self) -> str:
        """The words about the scales that follow an element type."""
        return f" with {self.dtype.name} scales of blocks of {self.format.rows} x {self.vector}"

    def extents(self, rows: int, k: int) -> tuple[int, int]:
        """Return the extents of the scales of an operand with `rows` rows of A, or columns of B."""
        return math.ceil(rows / self.format.rows), math.ceil(k / self.vector)


@dataclass(frozen=True)
class Operand:
    """An input matrix: A [M, K] or B [K, N]."""

    dtype: DType
    """As it lies in memory."""
    major: Literal["k", "mn"]
    """The dimension that is contiguous in memory."""
    scale: BlockScale | None = None
    padded: bool = False
    """True if 4-bit elements take a byte each in shared memory."""
    decoded: DType | None = None
    """The type that threads convert its elements to before they are multiplied; None if the tensor cores
    multiply them as they lie in shared memory.
    """

    @classmethod
    def of_weight(cls, element: str, scale_format: ScaleFormat) -> Operand:
        """Return the B of an element type and a format of scales whose elements threads decode."""
        scale = BlockScale(scale_format, DTYPES[scale_format.dtype], scale_format.vector)
        return cls(DTYPES[element], "k", scale, decoded=DTYPES[scale_format.decoded_to])

    @property
    def permuted_block(self) -> int:
        """Columns, and elements of K, of a block whose elements `pack_weight` permutes.

        1 if the elements lie in the order of a matrix.
        """
        return WEIGHT_BLOCK if self.decoded else 1

    @property
    def k_multiple(self) -> int:
        """The number that K must be a multiple of.

        Two elements of 4 bits share a byte, TMA pads 128, and permuted blocks are whole.
        """
        if self.permuted_block > 1:
            return self.permuted_block
        return PADDED_K if self.padded else self.dtype.elements_per_byte

    @property
    def scale_dtype(self) -> DType:
        """The type of the elements of its scales, as a kernel reads them: those that decode read words."""
        assert self.scale is not None
        words = self.scale.format.per_word > 1 or self.scale.format.zeros
        return DTYPES["int32"] if self.decoded and words else self.scale.dtype

    @property
    def scale_k(self) -> int:
        """Elements of K for which there is an element of its scales, as a kernel reads them."""
        assert self.scale is not None
        return self.scale.vector * (self.scale.format.per_word if self.decoded else 1)

    @property
    def applied(self) -> Applied | None:
        """Where a kernel multiplies by its scales; None if it has none."""
        if self.scale is None:
            return None
        if self.decoded:
            return "decode"
        return next(each for each in self.scale.format.applied if each != "decode")

    @property
    def multiplied(self) -> DType:
        """The type of its elements in the matrix instruction.

        Sizes of instructions and fragments, accumulators and rates follow from it; the bytes of tiles, loads
        and arguments follow from `dtype`.
        """
        return self.decoded or self.dtype

    @property
    def smem_bits(self) -> int:
        """Bits that an element takes in shared memory."""
        return 8 if self.padded else self.dtype.bits


@dataclass(frozen=True)
class Matmul:
    """A matmul: D = epilogue(A @ B, C), its types, and the promises about the result.

    It says nothing of sizes, of the GPU, or of the kernel that computes it.
    """

    a: Operand
    b: Operand
    c: DType | None
    d: DType
    accumulator: DType
    epilogue: Epilogue = PLAIN
    """The computation from the sums and C to D."""
    deterministic: bool = False
    """True if D must have the same bits in every run."""
    batch_invariant: bool = False
    """True if a row of D must have the same bits whatever M and the other rows are."""
    copies_misaligned: bool = False
    """True if a tensor over whose rows TMA cannot stride is copied, and not refused."""
    backward: bool = False
    """True if autograd goes through the module, by the modules of its gradients."""
    groups: Groups | None = None
    """The groups of rows that are multiplied with a B each; None if there is one A and one B."""
    d_scale: BlockScale | None = None
    """The scales of D that the kernel computes, one for each row and block of N; None if D has none."""

    @cached_property
    def key(self) -> str:
        """The digest that names this matmul wherever it is recorded: 64 hexadecimal digits.

        Equal matmuls have the same one, in every process and with every Python.
        """
        return digest(self)

    @cached_property
    def b_blocks(self) -> int:
        """The number of columns of B for each column of D: one for each accumulator of the epilogue.

        B is [K, b_blocks * N]: the columns of the first accumulator, then the columns of the second one. If
        `interleaved`, they take turns.
        """
        return len(self.epilogue.accumulators)

    def columns_of_b(self, n: int) -> int:
        """Return the columns of B for N columns of D."""
        return self.b_blocks * n

    @property
    def gated(self) -> bool:
        """True if an element of D is computed from several sums, as ``silu(gate) * up`` is."""
        return self.b_blocks > 1

    @property
    def interleaved(self) -> bool:
        """True if columns take turns: of B for several accumulators, or of the matrices in C and D."""
        return self.epilogue.interleaved

    @property
    def columns_in_turn(self) -> int:
        """Columns of one accumulator that lie side by side in an interleaved B, before as many of the other.

        In a permuted block a thread has columns that are so far apart, and thus both sums of an element of D.
        """
        return WEIGHT_TURN if self.b.permuted_block > 1 else 1

    @cached_property
    def d_blocks(self) -> int:
        """The number of matrices [M, N] that C and D have side by side, one for each output.

        C and D are [M, d_blocks * N]: the columns of the first matrix, then the columns of the second one. If
        `interleaved`, they take turns.
        """
        return len(self.epilogue.outputs)

    @property
    def saves(self) -> bool:
        """True if the kernel also stores the sums of all accumulators, as [M, b_blocks * N] of D's type.

        Its columns have the order of the columns of B.
        """
        return bool(self.epilogue.saved)

    @property
    def product_is_d_wide(self) -> bool:
        """True if A @ B has as many columns as D."""
        return self.b_blocks == self.d_blocks == 1

    @property
    def d_in_blocks(self) -> bool:
        """True if C and D have a block of N columns for each of several matrices."""
        return self.d_blocks > 1 and not self.interleaved

    @property
    def in_blocks(self) -> bool:
        """True if B has a block of N columns for each of several accumulators, one after the other."""
        return self.gated and not self.interleaved

    @property
    def gathers_a(self) -> bool:
        """True if an index has the row of A [T, K] that each row of the product is of."""
        return self.groups is not None and self.groups.a_rows

    @property
    def scatters_d(self) -> bool:
        """True if an index has the row of D [R, N] in which each row of the product is stored."""
        return self.groups is not None and self.groups.d_rows

    @property
    def most_d(self) -> float | None:
        """The magnitude at which a D of 8-bit floats saturates, with its scales; None for other types."""
        if self.d_scale:
            return MOST_SCALED
        return self.d.largest if self.d.fp8 else None

    @property
    def stacks_d_scales(self) -> bool:
        """True if the scales of D have a dimension for groups, as D has."""
        return self.d_scale is not None and self.groups is not None and self.groups.stacks("d")

    def extents_of_d(self, m: int, n: int) -> tuple[int, ...]:
        """Return the extents of C and D: [M, N], or [G, M, N] if they have a dimension for groups.

        If they have several matrices side by side, the last extent is `d_blocks` times N.
        """
        n *= self.d_blocks
        return (self.groups.count, m, n) if self.groups and self.groups.stacks("d") else (m, n)

    def leading_extents(self, name: str) -> tuple[int, ...]:
        """Return the extents of a tensor before its rows and columns, or before the elements of a vector.

        The tensor is A, B, or an operand of the epilogue other than C. One extent counts the groups, and is 1
        if all groups share the tensor; tensors without a dimension for groups have none.
        """
        if self.groups is None:
            return ()
        if name in ("a", "b"):
            extent = self.groups.first_extent("a" if name == "a" else "b")
            return () if extent is None else (extent,)
        operand = Load(name).operand
        is_whole = operand == "scalar" or (operand == "row" and not self.groups.apart)
        return () if is_whole else (self.groups.count,)

    def rows_of_groups(self, m: int) -> tuple[int, ...]:
        """Return the rows of D of each group of a problem of M rows; without groups all M are of one."""
        return self.groups.rows_of_each(m) if self.groups else (m,)

    def filled_groups(self, m: int) -> tuple[int, int]:
        """Return the number of groups with a row of D, and their rows; without groups all M are of one."""
        return self.groups.filled(m) if self.groups else (1, m)

    def depths_of_groups(self, k: int) -> tuple[int, ...]:
        """Return the K of each group of a problem; without groups all K is of one."""
        return self.groups.depths_of_each(k) if self.groups else (k,)

    def flops(self, shape: Shape) -> int:
        """Return the operations of a problem [M, N, K]: two for each product."""
        return flops(shape, self.b_blocks, self.groups)

    def operand(self, name: str) -> Operand:
        """Return the operand ``a`` or ``b``."""
        return self.a if name == "a" else self.b

    @property
    def kind(self) -> tuple[str, ...]:
        """The field's words for groups, gates and block scales; empty for a plain product of two matrices."""
        found: list[str] = []
        if self.groups:
            found.append("batched" if self.groups.of == "batched" else f"grouped ({self.groups.of})")
        if self.gated:
            found.append("gated")
        if self.epilogue.c_blocks:
            found.append("backward of a gate")
        if self.block_scaled:
            found.append("block-scaled")
        if self.b.decoded:
            found.append(f"{self.b.dtype.bits}-bit weights")
        return tuple(found)

    @cached_property
    def block_scaled(self) -> bool:
        """True if A or B has a scale for each block of the elements that are multiplied."""
        return self.packs_scales or self.scales_sums

    def _applies_scales(self, where: Applied) -> bool:
        """Return True if the scales of A or of B are applied at a place; each operand has its own."""
        scaled = (operand for operand in (self.a, self.b) if operand.scale)
        return any(operand.applied == where for operand in scaled)

    @cached_property
    def packs_scales(self) -> bool:
        """True if the tensor cores read scales of blocks, which are packed for them."""
        return self._applies_scales("mma")

    @cached_property
    def scales_sums(self) -> bool:
        """True if threads multiply the sums of each block of K by its scales."""
        return self._applies_scales("sums")

    @cached_property
    def scaled_k(self) -> int | None:
        """Elements of K whose sums threads multiply by a scale of A and one of B; None if they scale none."""
        return self.a.scale.vector if self.scales_sums and self.a.scale else None

    # --- what its epilogue does

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps on a sum before it is converted, in order."""
        return tuple(step.name for step in self.epilogue.steps)

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Names of the operations on alpha * A @ B + beta * C, in order."""
        return tuple(name for name in self.steps if name not in ("alpha", "c"))

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Rows of the table for all operations in order, with activations of loaded values."""
        rows: dict[Value, Operation] = {call: OPERATIONS[call.op] for call in self.epilogue.activations}
        rows.update((step.call, step.operation) for step in self.epilogue.steps if step.operation)
        return tuple(rows[node] for node in self.epilogue.nodes if node in rows)

    @cached_property
    def parameters(self) -> tuple[OpParameter, ...]:
        """The parameters of the operations; of several operations with one name, the first one's."""
        each = [parameter for call in self.epilogue.activations for parameter in call.parameters]
        first = {(found.op, found.name): found for found in reversed(each)}
        return tuple(first[key] for key in dict.fromkeys((found.op, found.name) for found in each))

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """The row and column operands of the epilogue, in the order of their use."""
        return tuple(name for name in self.epilogue.loads if Load(name).operand in ("row", "column"))

    @cached_property
    def parted_vectors(self) -> tuple[str, ...]:
        """The column operands that have an element for each column of a B with several accumulators."""
        return tuple(name for name in self.vectors if self.gated and OPERATIONS[name].along == "n")

    @cached_property
    def scalar(self) -> bool:
        """True if the epilogue reads a number in global memory."""
        return any(Load(name).operand == "scalar" for name in self.epilogue.loads)

    def vector_dtype(self, name: str) -> DType:
        """Return the type of a row or column operand: scales are fp32, a bias is what D is where it can."""
        as_d = OPERATIONS[name].effect == "plus" and self.d.addend
        return self.d if as_d else DTYPES["fp32"]

    @cached_property
    def transforms(self) -> bool:
        """True if the epilogue does more than convert the accumulator."""
        return self.epilogue != PLAIN
