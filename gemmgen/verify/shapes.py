"""Shapes for verification: the acceptance shapes of all kernels, and the shapes that a user names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import TCGEN05
from gemmgen.hardware.gpus import round_up
from gemmgen.plan.access import TensorAccess
from gemmgen.planner import plan_spec
from gemmgen.problem import Matmul, Shape, shape_text
from gemmgen.spec import SpecFile

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
"""[M, N, K] with the fault that each can show. K is rounded up for operands of 4 bits, N for some vectors."""

MISALIGNED_SHAPES: Final[Mapping[Shape, str]] = MappingProxyType(
    {
        (300, 777, 391): "odd N and K: copies element by element, whatever is contiguous",
        (129, 1030, 588): "rows of two and of four elements more than TMA takes: copies by wider words",
        (1, 1, 1): "one element of each, whose rows are padded all the same",
        (2001, 1003, 2002): "several programs, and an odd M: that is the row length of an M-contiguous A",
    }
)
"""[M, N, K] for kernels whose wrapper copies misaligned tensors, with the fault that each can show."""

LARGE_SHAPE: Final[Shape] = (65536, 33024, 64)
"""[M, N, K] with 2,164,260,864 elements of D, which a 32-bit index cannot count (2**31 is 2,147,483,648).

K is one step, so the work is small: 4.3 GB of D in 16 bits and 8.7 GB in fp32, as much of C where there is
one (and three times that while it is drawn), with B and one chunk of the reference beside it.
"""

LARGE_SUMS_BYTES: Final = 70 * 10**9
"""Greatest size of all partial sums in memory, in bytes: half of an H200's memory."""

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Suffixes of files that hold shapes."""


def acceptance_shapes(source: SpecFile) -> tuple[Shape, ...]:
    """Return the acceptance shapes; for a kernel of a single tile those that fit, and some of its own.

    For Blackwell they include a K of one instruction, and the next greater K that its operands can have; if
    the wrapper copies misaligned tensors, rows of such lengths.

    Raises GemmgenError if the spec is of a single tile, leaves its size open, and no plan is legal.
    """
    problem, tile = source.problem, single_tile(source)
    if tile is None:
        more = _instruction_shapes(problem) if source.request.gpu.architecture.mma == "tcgen05" else ()
        shapes = (*ACCEPTANCE_SHAPES, *more, *_misaligned_shapes(problem))
        return tuple(dict.fromkeys(_legal(problem, shape) for shape in shapes))
    m, n, k = tile
    own = (
        tile,
        (m - m // 3, n - n // 3, k - k // 3),  # ends inside the tile along every dimension
        (max(1, m - 1), max(1, n - 1), k),  # an N for which the wrapper must pad D
    )
    listed = (*ACCEPTANCE_SHAPES, *_misaligned_shapes(problem))
    return tuple(dict.fromkeys((*own, *fitting(listed, tile))))


def _misaligned_shapes(problem: Matmul) -> tuple[Shape, ...]:
    return tuple(MISALIGNED_SHAPES) if problem.copies_misaligned else ()


def large_shape(source: SpecFile) -> Shape:
    """Return a shape with more than 2**31 elements of D, or the tile of a kernel that computes only one.

    A D of several matrices has fewer rows. So has one whose partial sums would exceed ``LARGE_SUMS_BYTES``:
    these sums then have more than 2**31 elements.
    """
    if (tile := single_tile(source)) is not None:
        return tile
    m, n, k = _legal(source.problem, LARGE_SHAPE)
    m //= source.problem.d_blocks
    # An atomic reduction adds all parts to one array.
    schedule = source.spec.schedule
    parts = 1 if schedule.reduction == "atomic" else schedule.splits or 1
    while parts * m * n * source.problem.accumulator.bytes > LARGE_SUMS_BYTES:
        m //= 2
    return m, n, k


def refuse_extents(problem: Matmul, shapes: Iterable[Shape]) -> None:
    """Raise GemmgenError (``bad-shapes``) for shapes whose N or K the operands cannot have."""
    chosen, access = tuple(shapes), TensorAccess(problem)
    for axis, name, multiple in ((1, "N", access.n_multiple), (2, "K", access.k_multiple)):
        wrong = [shape_text(shape) for shape in chosen if shape[axis] % multiple]
        if wrong:
            message = f"{name} must be a multiple of {multiple} with these operands, found {', '.join(wrong)}"
            raise GemmgenError([Diagnostic("--shapes", "bad-shapes", message)])


def _instruction_shapes(problem: Matmul) -> tuple[Shape, Shape]:
    """Return a K of one instruction with a tile of 128 x 128, and one of just more with ragged edges."""
    k = 8 * TCGEN05.k_bytes // max(problem.a.smem_bits, problem.b.smem_bits)
    return (128, 128, k), (130, 264, k + TensorAccess(problem).k_multiple)


def _legal(problem: Matmul, shape: Shape) -> Shape:
    """Return the shape with the next N and K that the operands can have."""
    m, n, k = shape
    return m, round_up(n, TensorAccess(problem).n_multiple), round_up(k, TensorAccess(problem).k_multiple)


def fitting(shapes: Iterable[Shape], tile: Shape | None) -> tuple[Shape, ...]:
    """Return the shapes [M, N, K] that are not larger than the tile anywhere; all of them without a tile."""
    if tile is None:
        return tuple(shapes)
    return tuple(
        shape for shape in shapes if all(extent <= most for extent, most in zip(shape, tile, strict=True))
    )


def single_tile(source: SpecFile) -> Shape | None:
    """Return the largest problem [M, N, K] of a kernel of a single tile; None if there is no limit.

    The plan decides the sizes that the spec leaves open. Raises GemmgenError if no plan is legal.
    """
    spec = source.spec
    if spec.schedule.kind != "single_tile":
        return None
    m, n, k = spec.tile.m, spec.tile.n, spec.tile.k
    if m and n and k:
        return m * (spec.cluster.m or 1), n * (spec.cluster.n or 1), k
    plan = plan_spec(source)
    return plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k


# --- shapes that a user names


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes [M, N, K], each once, in the order given.

    ``text`` is ``MxNxK,MxNxK`` or the path of a YAML or JSON file. The file holds a list of [M, N, K], or a
    suite: named lists of shapes, and optionally ``llm_m``, a list of M, with ``llm_nk``, named lists of [N,
    K], which are combined with every M.

    Raises GemmgenError (``bad-shapes``).
    """
    if text.lower().endswith(SUFFIXES):
        shapes = tuple(_document_shapes(_load(text), text))
    else:
        shapes = tuple(_inline_shape(part.strip(), text) for part in text.split(","))
    if not shapes:
        raise _error(text, "there is no shape in it")
    return tuple(dict.fromkeys(shapes))


def _inline_shape(part: str, text: str) -> Shape:
    match = re.fullmatch(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", part)
    if match is None:
        expected = "write MxNxK,MxNxK or the path of a .yaml, .yml or .json file"
        raise _error("--shapes", f"`{part}` in `{text}` is no shape; {expected}")
    m, n, k = map(int, match.groups())
    return m, n, k


def _load(path: str) -> object:
    yaml: Any = YAML(typ="safe", pure=True)  # JSON is YAML
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"cannot read the shapes: {error}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        message = f"not YAML: {getattr(error, 'problem', None) or type(error).__name__}"
        raise GemmgenError([Diagnostic(path, "bad-shapes", message, line=line, column=column)]) from error


def _document_shapes(document: object, path: str) -> Iterator[Shape]:
    if isinstance(document, list):
        yield from _list_shapes(cast("list[object]", document), path, "")
    elif isinstance(document, dict):
        suite = cast("dict[object, object]", document)
        if ("llm_m" in suite) != ("llm_nk" in suite):
            raise _error(path, "`llm_m` and `llm_nk` need each other")
        for name, value in suite.items():
            if name == "llm_nk":
                yield from _crossed(suite["llm_m"], value, path)
            elif name != "llm_m":
                yield from _list_shapes(value, path, str(name))
    else:
        raise _error(path, "neither a list of [M, N, K] nor a suite of named lists")


def _list_shapes(value: object, path: str, field: str) -> Iterator[Shape]:
    for index, element in enumerate(_list(value, path, field)):
        m, n, k = _extents(element, "MNK", path, f"{field}.{index}" if field else str(index))
        yield m, n, k


def _crossed(llm_m: object, llm_nk: object, path: str) -> Iterator[Shape]:
    """Yield every layer [N, K] of every model with every M."""
    if not isinstance(llm_nk, dict):
        raise _error(path, "must be named lists of [N, K]", "llm_nk")
    rows = _extents(_list(llm_m, path, "llm_m"), "", path, "llm_m")
    for model, layers in cast("dict[object, object]", llm_nk).items():
        field = f"llm_nk.{model}"
        for index, layer in enumerate(_list(layers, path, field)):
            n, k = _extents(layer, "NK", path, f"{field}.{index}")
            yield from ((m, n, k) for m in rows)


def _list(value: object, path: str, field: str) -> list[object]:
    if not isinstance(value, list):
        raise _error(path, "must be a list", field)
    return cast("list[object]", value)


def _extents(value: object, names: str, path: str, field: str) -> list[int]:
    """Return positive integers, one for each of ``names`` if there are any."""
    extents = _list(value, path, field)
    expected = f"[{', '.join(names)}]" if names else "a list"
    if names and len(extents) != len(names):
        raise _error(path, f"must be {expected}, has {len(extents)} numbers", field)
    numbers = [extent for extent in extents if type(extent) is int and extent > 0]
    if len(numbers) != len(extents):
        raise _error(path, f"must be {expected} of positive integers", field)
    return numbers


def _error(path: str, message: str, field: str | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path, "bad-shapes", message, field=field or None)])
