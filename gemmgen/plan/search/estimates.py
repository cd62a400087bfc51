"""Times and bytes that a kernel is expected to take, as both families estimate them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gemmgen.plan.group_forecast import moved_of_groups
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.timing import Moved, Traffic, moved_bytes
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.operations import OPERATIONS


@dataclass(frozen=True)
class Estimate:
    """The expected time of a plan for a problem: a figure to rank by, no promise."""

    terms: dict[str, float]
    """Cycles of an SM by cause: the ideal time, and each loss on top of it."""
    l2_bytes: int
    """Bytes of A, B and C that programs load; of a multicast tile once for all CTAs that share it."""
    dram_bytes: int
    """Fewest bytes from and to DRAM: each matrix and vector once."""
    dram_seconds: float
    hz: float
    peak_seconds: float = 0.0
    """Seconds at the datasheet's peak of the GPU: no prediction is shorter."""

    @property
    def cycles(self) -> float:
        """Cycles of an SM, all terms; infinite for a cluster of more CTAs than the GPU has SMs."""
        return sum(self.terms.values())

    @property
    def seconds(self) -> float:
        """The time of the SMs, unless DRAM or the peak of the GPU's tensor cores takes longer."""
        return max(self.cycles / self.hz, self.dram_seconds, self.peak_seconds)


def estimated(kernel: Kernel, shape: Shape, terms: dict[str, float], step_bytes: float) -> Estimate:
    """Return the estimate of a kernel for a problem [M, N, K] from its cycles by cause.

    `step_bytes` is a CTA's share of what a K step loads, multicast tiles divided by who shares them.
    """
    gpu, dram = kernel.gpu, dram_bytes(kernel.problem, shape)
    bits = max(kernel.problem.a.multiplied.bits, kernel.problem.b.multiplied.bits)
    return Estimate(
        terms=terms,
        l2_bytes=l2_bytes(kernel, shape, step_bytes),
        dram_bytes=dram,
        dram_seconds=dram / gpu.dram_bytes_per_second,
        hz=gpu.sustained_hz,
        peak_seconds=kernel.problem.flops(shape) / gpu.dense_flops_per_second(bits),
    )


def l2_bytes(kernel: Kernel, shape: Shape, step_bytes: float) -> int:
    """Return the bytes that programs load for a problem: a tile's operands at every K step, and its C."""
    tiles_m, tiles_n = kernel.tiles(shape)
    k_steps = kernel.k_steps(shape)
    c = kernel.problem.c
    columns = kernel.problem.d_blocks * kernel.program_tile_n
    of_tile = kernel.program_tile_m * columns * c.bytes if c else 0
    return round(tiles_m * tiles_n * (k_steps * kernel.cluster_size * step_bytes + of_tile))


def dram_bytes(problem: Matmul, shape: Shape) -> int:
    """Return the fewest bytes from and to DRAM: all that is read, and D written, once."""
    m, n, k = shape
    active, rows = problem.filled_groups(m)
    if problem.groups and problem.groups.divides_k:
        active, rows = 1, m  # one A and one B
    scales = sum(
        count * math.prod(operand.scale.extents(extent, k)) * operand.scale.dtype.bytes
        for operand, extent, count in ((problem.a, rows, 1), (problem.b, problem.columns_of_b(n), active))
        if operand.scale
    )
    return moved_of(problem, shape).every + scales


def moved_of(problem: Matmul, shape: Shape) -> Moved:
    """Return the bytes from and to DRAM of a problem [M, N, K]; a B counts if its group has rows."""
    (found,) = moved_of_each(problem, (shape,))
    return found


def moved_of_each(problem: Matmul, shapes: Sequence[Shape]) -> list[Moved]:
    """Return the bytes from and to DRAM of each problem."""
    traffic, groups = traffic_of(problem), problem.groups
    if groups:
        return [moved_of_groups(traffic, groups, shape) for shape in shapes]
    return [moved_bytes(traffic, *shape) for shape in shapes]


def traffic_of(problem: Matmul) -> Traffic:
    """Return the bits of elements in DRAM, without block scales, and the order of A and of B in memory.

    For B, and for vectors along its columns, it is all blocks for each column of D.
    """
    bits = {"m": 0, "n": 0}
    for name in problem.vectors:
        each = problem.b_blocks if name in problem.parted_vectors else 1
        bits[OPERATIONS[name].along] += each * problem.vector_dtype(name).bits
    return Traffic(
        a=problem.a.dtype.bits,
        b=problem.b_blocks * problem.b.dtype.bits,
        c=problem.d_blocks * problem.c.bits if problem.c else 0,
        d=(problem.d_blocks + problem.b_blocks * problem.saves) * problem.d.bits,
        row_vectors=bits["m"],
        column_vectors=bits["n"],
        a_rows="k" if problem.a.major == "k" else "m",
        b_rows="k" if problem.b.major == "k" else "n",
    )


def whole_cycles(terms: dict[str, float]) -> float:
    """Return the SM cycles of all terms, to the cycle, so that equal kernels tie."""
    total = sum(terms.values())
    return total if math.isinf(total) else round(total)


def geometric_mean(values: Collection[float]) -> float:
    """Return the geometric mean of positive values; infinite ones make it infinite."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def excess_of(*used_of_limits: tuple[float, float]) -> float:
    """Return by how much amounts exceed their limits, as a sum of fractions."""
    return sum(max(0.0, used / limit - 1) for used, limit in used_of_limits)
