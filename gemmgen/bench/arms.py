"""The arms of a measurement: tensors, calls of a kernel on them, and the check of its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmgen.bench.record import Protocol
from gemmgen.bench.result_log import Rounds
from gemmgen.features.checking import sides_of
from gemmgen.literals import visible
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.encoding import poison
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Draw, Layout, Matrix
from gemmgen.numerics.quantized import dequantized_output
from gemmgen.numerics.reference import Deviation, Tolerance, deviation, references_of_saved
from gemmgen.numerics.torch_call import Call
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.dtypes import Dtypes

Progress = Callable[[str], None]
"""Progress callback: takes a text for the user."""


@dataclass(frozen=True)
class InputSet:
    """Tensors of one call."""

    inputs: Inputs
    """Inputs in the form of the spec, for the reference."""
    timed: Inputs
    """Inputs of the timed calls: as `inputs`, with block scales packed in advance, as those of weights would
    be.
    """
    d: Tensor
    """The result: [M, N], or [G, M, N] if it has a dimension for groups."""


def input_sets(
    shape: Shape,
    problem: Matmul,
    l2_bytes: int,
    generator: torch.Generator,
    protocol: Protocol | Rounds,
    pack_scales: Callable[[Tensor], Tensor] | None = None,
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: random and normalized inputs, and poisoned results."""
    set_bytes = Dtypes.of(problem).moved_bytes(shape)
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(input_set(shape, problem, generator, pack_scales) for _ in range(count))


def input_set(
    shape: Shape,
    problem: Matmul,
    generator: torch.Generator,
    pack_scales: Callable[[Tensor], Tensor] | None,
) -> InputSet:
    """Return one set for a shape [M, N, K]: random and normalized inputs, and a poisoned result.

    Groups have the rows, or the K, for which kernels are planned.
    """
    m, n, _ = shape
    *rows, columns = extents = problem.extents_of_d(m, n)
    d = Matrix.poisoned(math.prod(rows), columns, problem.d.name, generator.device).view.view(extents)
    layout = Layout(shape, generator.device, Draw(generator), misaligned=problem.copies_misaligned)
    inputs = drawn_inputs(layout, problem, sides_of(problem), normalized=True)
    return InputSet(inputs, inputs.packed(pack_scales) if pack_scales else inputs, d)


def judged(
    bind: Call,
    inputs_and_d: InputSet,
    problem: Matmul,
    exact: Iterable[tuple[slice, Tensor]] | None = None,
    finish: Callable[[], None] = lambda: None,
) -> Deviation:
    """Call an arm once with a poisoned d, run ``finish``, and return the deviation of its result."""
    inputs, d = inputs_and_d.inputs, inputs_and_d.d
    call = bind(inputs_and_d.timed, d)
    d.fill_(poison(d.dtype))
    # Freed at once, so that a result that the call allocates on a GPU gets this poisoned block.
    Matrix.poisoned(d.shape[:-1].numel(), d.shape[-1], problem.d.name, d.device)
    result = call()
    finish()
    return deviation_of(result, inputs, problem, exact)


def deviation_of(
    result: Tensor | tuple[Tensor, Tensor],
    inputs: Inputs,
    problem: Matmul,
    exact: Iterable[tuple[slice, Tensor]] | None = None,
) -> Deviation:
    """Return the deviation of the result of a call.

    D with computed scales is compared as numbers. D beside saved sums is compared with the D of these sums.
    """
    if isinstance(result, Tensor):
        return deviation(result, inputs, problem, exact)
    d, beside = result
    if problem.d_scale:
        return deviation(dequantized_output(d, beside), inputs, problem, exact)
    return deviation(d, inputs, problem, references_of_saved(beside, inputs, problem))


def wrong(allowed: Tolerance, found: Deviation) -> Iterator[str]:
    """Yield a text for each limit that the deviation of a result exceeds."""
    limits = (
        ("relative error", found.relative, allowed.relative),
        ("worst element", found.worst_element, allowed.worst_element),
    )
    for what, measured, limit in limits:
        if not measured <= limit:  # NaN is not
            yield f"{what} {measured:.3g}, the limit is {limit:.3g}; a wrong kernel is not timed"


class Calls:
    """Calls of one arm, one for each input set, with their latest results."""

    def __init__(self, bind: Call, sets: tuple[InputSet, ...]) -> None:
        self._calls = tuple(bind(each.timed, each.d) for each in sets)
        self.results: list[Tensor | tuple[Tensor, Tensor]] = [each.d for each in sets]

    def __call__(self, index: int) -> None:
        """Call the arm on the input set of this index."""
        # Kept until the next call on the set, so that allocated results are rotated like the sets.
        self.results[index] = self._calls[index]()


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its text, with escapes for unprintable characters."""
    return visible(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
