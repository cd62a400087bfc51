"""What a kernel computes: the part of a plan that the spec alone decides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal

from gemmgen.hardware import DTYPES, PADDED_K, DType, Gpu, ScaleFormat
from gemmgen.problem.operations import OPERATIONS, Operation, OpParameter

Shape = tuple[int, int, int]
"""[M, N, K] of D[M, N] = A[M, K] @ B[K, N]."""


DEFAULT_SHAPE: Shape = (8192, 8192, 8192)
"""What an open spec is planned for that names no problem."""


def shape_text(shape: Shape) -> str:
    """Return the shape as users write it: ``8192x8192x512``."""
    return "x".join(str(extent) for extent in shape)


@dataclass(frozen=True)
class BlockScale:
    """The scales of an operand: one for each row and each ``vector`` elements of K."""

    format: ScaleFormat
    dtype: DType
    """As the spec has it, which a rule holds against the format."""
    vector: int


@dataclass(frozen=True)
class Operand:
    """An input matrix: A [M, K] or B [K, N]."""

    dtype: DType
    major: Literal["k", "mn"]
    """The dimension that is contiguous in memory."""
    scale: BlockScale | None = None
    padded: bool = False
    """Whether 4-bit elements take a byte each in shared memory."""

    @property
    def k_multiple(self) -> int:
        """What K is a multiple of: a byte holds two elements of 4 bits, and TMA pads 128 at a time."""
        return PADDED_K if self.padded else self.dtype.elements_per_byte

    @property
    def smem_bits(self) -> int:
        """Bits that an element takes in shared memory."""
        return 8 if self.padded else self.dtype.bits


@dataclass(frozen=True)
class Ranges:
    """The least and the most of each extent of the problems that a kernel is for."""

    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]

    def __str__(self) -> str:
        """Return them as users would say them: ``1 to 64 x 6144 x 4096``."""
        ends = (self.m, self.n, self.k)
        return " x ".join(str(least) if least == most else f"{least} to {most}" for least, most in ends)

    @cached_property
    def ends(self) -> tuple[Shape, ...]:
        """The least problem and the largest."""
        return tuple(dict.fromkeys(zip(self.m, self.n, self.k, strict=True)))

    @cached_property
    def representatives(self) -> tuple[Shape, ...]:
        """The problems that stand for all of them: both ends of each extent, and of M powers of two between.

        A kernel's time goes by rows in steps of its tile, which is such a power, so it changes most there;
        N and K are given by a layer, and are rarely ranges.
        """
        least, most = self.m
        powers = (1 << power for power in range(least.bit_length(), (most - 1).bit_length()))
        rows = sorted({least, *powers, most})
        columns, depths = sorted(set(self.n)), sorted(set(self.k))
        return tuple(itertools.product(rows, columns, depths))


@dataclass(frozen=True)
class Problem:
    """D = ops(alpha * A @ B + beta * C), where for which shapes, and on what."""

    title: str
    gpu: Gpu
    a: Operand
    b: Operand
    c: DType | None
    d: DType
    accumulator: DType
    alpha: float
    beta: float
    """Of C; it has no meaning where C is added by the operation ``residual``."""
    ops: tuple[str, ...]
    """What the epilogue does to alpha * A @ B + beta * C, in order."""
    check_shapes: tuple[Shape, ...]
    bench_shapes: tuple[Shape, ...]
    parameters: tuple[OpParameter, ...] = ()
    """Of the operations, every one with a value."""
    ranges: Ranges | None = None
    """The problems that the kernel is for, where the spec says it."""
    deterministic: bool = False
    """Whether D must have the same bits in every run."""
    batch_invariant: bool = False
    """Whether a row of D must have the same bits whatever M and the other rows are."""
    copies_misaligned: bool = False
    """Whether a tensor over whose rows TMA cannot stride is copied, and not refused."""
    backward: bool = False
    """Whether autograd goes through the module, by the modules of its gradients."""

    @cached_property
    def planned_shapes(self) -> tuple[Shape, ...]:
        """The problems by which open decisions are made."""
        if self.ranges:
            return self.ranges.representatives
        return self.bench_shapes[:1] or (DEFAULT_SHAPE,)

    def stated_extents(self) -> Iterator[tuple[str, int, int]]:
        """Yield each extent of a listed problem, and the ends of ranges: its field, its axis, and the number.

        The axis is that of M, N and K.
        """
        for section, shapes in (("check", self.check_shapes), ("bench", self.bench_shapes)):
            for i, shape in enumerate(shapes):
                for axis, extent in enumerate(shape):
                    yield f"{section}.shapes.{i}.{axis}", axis, extent
        if self.ranges:
            for axis, name in enumerate("mnk"):
                least, most = getattr(self.ranges, name)
                if least == most:
                    yield f"problem.{name}", axis, least
                else:
                    yield f"problem.{name}.0", axis, least
                    yield f"problem.{name}.1", axis, most

    def operand(self, name: str) -> Operand:
        """Return the operand ``a`` or ``b``."""
        return self.a if name == "a" else self.b

    @property
    def added_beta(self) -> float:
        """The factor of the C that is added before the ops; 0 if C is not added there."""
        return 0.0 if self.c is None or self.residual else self.beta

    @cached_property
    def k_multiple(self) -> int:
        """What K is a multiple of."""
        return max(self.a.k_multiple, self.b.k_multiple)

    @cached_property
    def block_scaled(self) -> bool:
        """Whether A or B has a scale for each block of elements."""
        return self.a.scale is not None or self.b.scale is not None

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """What the table has of the operations, in order."""
        return tuple(OPERATIONS[op] for op in self.ops)

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """The row and column operands of the epilogue, in the order of its operations."""
        return tuple(op.name for op in self.operations if op.vector)

    @cached_property
    def scalar(self) -> bool:
        """Whether the epilogue multiplies with a number in global memory."""
        return any(op.operand == "scalar" for op in self.operations)

    @cached_property
    def residual(self) -> bool:
        """Whether C is added by an operation, and not to the product."""
        return any(op.operand == "matrix" for op in self.operations)

    def vector_dtype(self, name: str) -> DType:
        """Return the type of a row or column operand: scales are fp32, a bias is what D is where it can."""
        as_d = OPERATIONS[name].effect == "plus" and self.d.addend
        return self.d if as_d else DTYPES["fp32"]

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """What is done to a sum before it is converted, in order."""
        scaled = ("alpha",) if self.alpha != 1 else ()
        added = ("c",) if self.c is not None and not self.residual else ()
        return (*scaled, *added, *self.ops)

    @cached_property
    def transforms(self) -> bool:
        """Whether the epilogue does more than convert the accumulator."""
        return self.alpha != 1 or self.c is not None or bool(self.ops)

    @property
    def applies_erf(self) -> bool:
        """Whether the epilogue computes erf, which takes more registers than other functions."""
        return any(op.register_class == "erf" for op in self.operations)


# --- gradients

OPERANDS: Final = ("a", "b")
"""What has a gradient that a kernel computes."""
AXES: Final[Mapping[str, str]] = MappingProxyType({"a": "mk", "b": "kn", "d": "mn"})
"""The axes of each matrix, as they are written."""


@dataclass(frozen=True)
class Gradient:
    """The gradient of A or B of a problem, as a product of that of D and the other operand.

    Of D = A @ B the gradient of A is dD @ B.T, that of B is A.T @ dD. Each is computed as its operand lies in
    memory, so that the gradient of a parameter is dense as the parameter is, and the transposes of what is
    read are views: no matrix is copied.
    """

    operand: str
    """``a`` or ``b``."""
    problem: Problem

    @cached_property
    def lies(self) -> Mapping[str, str]:
        """The axes of each matrix as it lies in memory: the contiguous one last."""
        a, b = self.problem.a.major, self.problem.b.major
        return {"a": "mk" if a == "k" else "km", "b": "nk" if b == "k" else "kn", "d": "mn"}

    @cached_property
    def axes(self) -> tuple[str, str, str]:
        """The axes of the problem's that are M, N and K of the product."""
        rows, columns = self.lies[self.operand]
        return rows, columns, "n" if self.operand == "a" else "m"

    @cached_property
    def factors(self) -> tuple[str, str]:
        """The matrices that are multiplied: ``d`` stands for the gradient of D."""
        other = OPERANDS[self.operand == "a"]
        return ("d", other) if self.axes[0] in AXES["d"] else (other, "d")

    @cached_property
    def transposed(self) -> tuple[bool, bool, bool]:
        """Whether each factor is multiplied by its transposed view, and whether the gradient is one."""
        m, n, k = self.axes
        (left, right), wanted = self.factors, AXES[self.operand]
        return AXES[left] != m + k, AXES[right] != k + n, wanted != m + n

    @property
    def majors(self) -> tuple[str, str]:
        """Which dimension of each factor is contiguous in memory, as specs have it."""
        left, right = ("k" if self.lies[factor][1] == self.axes[2] else "mn" for factor in self.factors)
        return left, right

    @property
    def formula(self) -> str:
        """What it is, as a title has it: ``dD @ B.T``."""
        names = {"a": "A", "b": "B", "d": "dD"}
        left, right = (
            names[factor] + ".T" * turned
            for factor, turned in zip(self.factors, self.transposed[:2], strict=True)
        )
        return f"{left} @ {right}"


def gradients_of(problem: Problem) -> tuple[Gradient, ...]:
    """Return the gradients that kernels compute of a problem: those of A and of B, or none."""
    return tuple(Gradient(operand, problem) for operand in OPERANDS) if problem.backward else ()
