"""What a right kernel does on any device; each group of checks runs it on fresh inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gemmgen.problem.case import Case, numbers
from gemmgen.problem.check import Check
from gemmgen.problem.dtype import bits, differing
from gemmgen.problem.formula import BLOCK_SCALES
from gemmgen.problem.inputs import Inputs
from gemmgen.problem.special import special_values

Group = Callable[[Case], Iterator[Check]]
"""Checks that share their runs of the kernel."""


def own_output(case: Case) -> Iterator[Check]:
    """Check the D that the wrapper allocates: its shape, dtype and strides, and its numbers."""
    inputs = case.inputs()
    out = case.run_alone(inputs)
    m, n, _ = case.shape
    kind = (tuple(out.shape), out.dtype, out.device)
    wrong_kind = kind != ((m, n), case.d_dtype, inputs.a.device)
    row_major = (n == 1 or out.stride(1) == 1) and (m == 1 or out.stride(0) >= n)
    yield case.check("own output: wrong shape, dtype or device", wrong_kind, 0)
    yield case.check("own output: not row-major", not row_major, 0)
    yield from numbers(case, "own output", out, inputs)


def given_output(case: Case) -> Iterator[Check]:
    """Check that a poisoned ``out`` is returned, is written everywhere, and holds the right numbers.

    One that TMA cannot write alone must be refused instead.
    """
    inputs = case.inputs()
    if not case.takes_out:
        yield from _refused(case, inputs)
        return
    out = case.output()
    returned = inputs.call(case.matmul, out.view)
    yield case.check("out=: not what is returned", not _same_memory(returned, out.view), 0)
    yield from numbers(case, "out=", out.view, inputs)


def strided(case: Case) -> Iterator[Check]:
    """Check views in wider storage: what surrounds the inputs is poison, what surrounds D must stay.

    Where the wrapper takes no ``out``, D is its own.
    """
    inputs = case.inputs(guarded=True)
    if not case.takes_out:
        yield from numbers(case, "strided", case.run_alone(inputs), inputs)
        return
    out = case.output(guarded=True)
    inputs.call(case.matmul, out.view)
    yield case.check("strided: elements written outside", out.written_outside, 0)
    yield from numbers(case, "strided", out.view, inputs)


def repeated(case: Case) -> Iterator[Check]:
    """Check that further runs on the same inputs give the same bits, each into fresh poison.

    Nothing waits for the device in between, so that a run also meets what the one before it left behind.
    """
    inputs = case.inputs()
    yield from compared(case, "repeated", case.run(inputs).clone(), lambda: case.run(inputs))


def packed_scales(case: Case) -> Iterator[Check]:
    """Check that scales that ``pack_scales`` has packed give the bits of plain ones, alone and together."""
    if case.pack_scales is None:
        raise AttributeError("the module has no function `pack_scales`")
    inputs = case.inputs()
    plain = case.run(inputs).clone()
    scaled = tuple(name for name in BLOCK_SCALES if name in inputs.extras)
    for names in dict.fromkeys((*((name,) for name in scaled), scaled)):
        found = case.run(inputs.packed(case.pack_scales, names))
        count = int((bits(found) != bits(plain)).sum().item())
        yield case.check(f"packed {' and '.join(names)}: elements that differ", count, 0)


def compared(case: Case, label: str, first: Tensor, run: Callable[[], Tensor]) -> Iterator[Check]:
    """Run ``case.repeats`` times, each into poison; count the runs with other bits than ``first``."""
    differs = [differing(run(), first) for _ in range(case.repeats)]
    count = int(torch.stack(differs).sum().item())
    yield case.check(f"{label}: runs of {case.repeats} that differ", count, 0)


def _refused(case: Case, inputs: Inputs) -> Iterator[Check]:
    """Check that an ``out`` is refused, and nothing of it or around it written."""
    out = case.output(guarded=True)
    accepted = True
    try:
        inputs.call(case.matmul, out.view)
    except ValueError:
        accepted = False
    yield case.check("out=: accepted, though TMA cannot write it alone", accepted, 0)
    if accepted:
        yield case.check("out=: elements written outside", out.written_outside, 0)
    else:
        yield case.check("out=: elements written though refused", out.written, 0)


def _same_memory(left: Tensor, right: Tensor) -> bool:
    same_layout = left.shape == right.shape and left.stride() == right.stride()
    return same_layout and left.data_ptr() == right.data_ptr()


PORTABLE: tuple[tuple[str, Group], ...] = (
    ("own output", own_output),
    ("out=", given_output),
    ("strided", strided),
    ("special values", special_values),
    ("repeated", repeated),
)
"""Every group for all modules that needs no GPU, with the name that progress and failures show."""
BLOCK_SCALED: tuple[tuple[str, Group], ...] = (("packed scales", packed_scales),)
"""The group that only modules with block-scaled operands have; it needs no GPU either."""
