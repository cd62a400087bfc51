"""The shapes that every kernel is verified on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan import plan_spec
from gemmgen.plan.decisions import problem_of
from gemmgen.problem import Shape, shape_text
from gemmgen.spec import SpecFile
from gemmgen.spec.model import Spec
from gemmgen.target import BLACKWELL, TCGEN05

ACCEPTANCE_SHAPES: Final[Mapping[Shape, str]] = MappingProxyType(
    {
        (8192, 8192, 8192): "many tiles for each program, a long K: phases, scheduling, accumulation",
        (208, 416, 304): "multiples of 16 that no tile divides: each edge of the result is a partial tile",
        (2000, 1000, 2000): "several programs, partial tiles on every edge, a partial last K step",
        (1, 8, 16): "the least: one row of eight columns, and a K that is a fraction of one step",
        (64, 64, 64): "less than one tile, and fewer K steps than the ring has stages",
        (4095, 4097, 4104): "odd M and N: rows of D that the wrapper must pad, and refuse as an ``out``",
        (300, 776, 392): "no power of two above 8 divides N or K, and M ends inside a warp's rows",
    }
)
"""[M, N, K] and what each is there to break. K is rounded up where operands of 4 bits need more of it."""

LARGE_SHAPE: Final[Shape] = (65536, 33024, 64)
"""[M, N, K] with 2,164,260,864 elements of D, which a 32-bit index cannot count (2**31 is 2,147,483,648).

K is one step, so the work is small: 4.3 GB of D in 16 bits and 8.7 GB in fp32, as much of C where there is
one (and three times that while it is drawn), with B and one chunk of the reference beside it.
"""


def acceptance_shapes(spec: Spec) -> tuple[Shape, ...]:
    """Return the acceptance shapes, or for a kernel of a single tile those that fit it and some of its own.

    For Blackwell also a K of one instruction, and one that is as little more as its operands can have.

    Raises GemmgenError where the spec is of a single tile, leaves its size open, and no plan is legal.
    """
    tile = single_tile(spec)
    if tile is None:
        more = _instruction_shapes(spec) if problem_of(spec).gpu.architecture == BLACKWELL else ()
        return tuple(dict.fromkeys(_with_legal_k(spec, shape) for shape in (*ACCEPTANCE_SHAPES, *more)))
    m, n, k = tile
    own = (
        tile,
        (m - m // 3, n - n // 3, k - k // 3),  # ends inside the tile along every dimension
        (max(1, m - 1), max(1, n - 1), k),  # an N for which the wrapper must pad D
    )
    return tuple(dict.fromkeys((*own, *fitting(ACCEPTANCE_SHAPES, tile))))


def large_shape(spec: Spec) -> Shape:
    """Return a shape of more than 2**31 elements of D, or the tile of a kernel that computes no more."""
    return single_tile(spec) or _with_legal_k(spec, LARGE_SHAPE)


def refuse_k(spec: Spec, shapes: Iterable[Shape]) -> None:
    """Raise GemmgenError (``bad-shapes``) for shapes whose K the operands cannot have."""
    multiple = problem_of(spec).k_multiple
    wrong = [shape_text(shape) for shape in shapes if shape[2] % multiple]
    if wrong:
        message = f"K must be a multiple of {multiple} with these operands, found {', '.join(wrong)}"
        raise GemmgenError([Diagnostic("--shapes", "bad-shapes", message)])


def _instruction_shapes(spec: Spec) -> tuple[Shape, Shape]:
    """Return a K of one instruction with a tile of 128 x 128, and one of just more with ragged edges."""
    problem = problem_of(spec)
    k = 8 * TCGEN05.k_bytes // max(problem.a.smem_bits, problem.b.smem_bits)
    return (128, 128, k), (130, 264, k + problem.k_multiple)


def _with_legal_k(spec: Spec, shape: Shape) -> Shape:
    """Return the shape with the next K that the operands can have."""
    m, n, k = shape
    multiple = problem_of(spec).k_multiple
    return m, n, -(-k // multiple) * multiple


def fitting(shapes: Iterable[Shape], tile: Shape | None) -> tuple[Shape, ...]:
    """Return the shapes [M, N, K] that are not larger than the tile anywhere; all of them without a tile."""
    if tile is None:
        return tuple(shapes)
    return tuple(
        shape for shape in shapes if all(extent <= most for extent, most in zip(shape, tile, strict=True))
    )


def single_tile(spec: Spec) -> Shape | None:
    """Return the largest problem [M, N, K] of a kernel of a single tile; None where there is no limit.

    What the spec leaves open of the tile is what its plan chooses. Raises GemmgenError if no plan is legal.
    """
    if spec.schedule.kind != "single_tile":
        return None
    m, n, k = spec.tile.m, spec.tile.n, spec.tile.k
    if m and n and k:
        return m * (spec.cluster.m or 1), n * (spec.cluster.n or 1), k
    plan = plan_spec(SpecFile(spec, path=spec.title, stem="", sha256="", positions={}, key_positions={}))
    return plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k
