"""What a right kernel does on any device; each group of checks runs it on fresh inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmgen.module import Matmul
from gemmgen.spec.model import Operands
from gemmgen.verify.matrix import TORCH_DTYPES, Matrix, differing, not_finite, random_operands, takes_out
from gemmgen.verify.reference import deviation
from gemmgen.verify.tolerance import TOLERANCES, WORST_ELEMENT_FACTOR
from gemmgen.verify.verification import Check, Shape


@dataclass(frozen=True)
class Case:
    """A kernel to be checked on one shape."""

    matmul: Matmul
    shape: Shape
    operands: Operands
    generator: torch.Generator
    """Draws the inputs on the device under test; each group of checks draws its own."""
    repeats: int

    @property
    def device(self) -> torch.device:
        """Where the kernel runs."""
        return self.generator.device

    def inputs(self, *, guarded: bool = False) -> tuple[Tensor, Tensor]:
        """Return fresh a [M, K] and b [K, N] of N(0, 1), K-major unless the spec says otherwise."""
        return random_operands(self.shape, self.operands, self.generator, guarded=guarded)

    def output(self, *, guarded: bool = False) -> Matrix:
        """Return a poisoned d [M, N]."""
        return Matrix.poisoned(*self.shape[:2], self.operands.d.dtype, self.device, guarded=guarded)

    @property
    def d_dtype(self) -> torch.dtype:
        """Element type of d."""
        return TORCH_DTYPES[self.operands.d.dtype]

    @property
    def takes_out(self) -> bool:
        """Whether the wrapper must accept an ``out`` of this shape; if not, it must refuse every one."""
        return takes_out(self.shape[1], self.d_dtype)

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        """Run the kernel once into poison, an ``out`` where it takes one, and return d [M, N]."""
        return self.matmul(a, b, out=self.output().view) if self.takes_out else self.run_alone(a, b)

    def run_alone(self, a: Tensor, b: Tensor) -> Tensor:
        """Run the kernel once into the d that the wrapper allocates, which is poison too, and return it."""
        self.output()  # freed at once: on a GPU the next request of this size, which is d's, gets its block
        return self.matmul(a, b)

    def check(self, what: str, measured: float, limit: float) -> Check:
        """Return a check of this case's shape."""
        return Check(self.shape, what, float(measured), limit)


Group = Callable[[Case], Iterator[Check]]
"""Checks that share their runs of the kernel."""


def own_output(case: Case) -> Iterator[Check]:
    """Check the D that the wrapper allocates: its shape, dtype and strides, and its numbers."""
    a, b = case.inputs()
    out = case.run_alone(a, b)
    m, n, _ = case.shape
    kind = (tuple(out.shape), out.dtype, out.device)
    wrong_kind = kind != ((m, n), case.d_dtype, a.device)
    row_major = (n == 1 or out.stride(1) == 1) and (m == 1 or out.stride(0) >= n)
    yield case.check("own output: wrong shape, dtype or device", wrong_kind, 0)
    yield case.check("own output: not row-major", not row_major, 0)
    yield from numbers(case, "own output", out, a, b)


def given_output(case: Case) -> Iterator[Check]:
    """Check that a poisoned ``out`` is returned, is written everywhere, and holds the product.

    One that TMA cannot write alone must be refused instead.
    """
    a, b = case.inputs()
    if not case.takes_out:
        yield from _refused(case, a, b)
        return
    out = case.output()
    returned = case.matmul(a, b, out=out.view)
    yield case.check("out=: not what is returned", not _same_memory(returned, out.view), 0)
    yield from numbers(case, "out=", out.view, a, b)


def strided(case: Case) -> Iterator[Check]:
    """Check views in wider storage: what surrounds A and B is NaN, what surrounds D must stay as it was.

    Where the wrapper takes no ``out``, D is its own.
    """
    a, b = case.inputs(guarded=True)
    if not case.takes_out:
        yield from numbers(case, "strided", case.run_alone(a, b), a, b)
        return
    out = case.output(guarded=True)
    case.matmul(a, b, out=out.view)
    yield case.check("strided: elements written outside", out.written_outside, 0)
    yield from numbers(case, "strided", out.view, a, b)


def once(case: Case) -> Iterator[Check]:
    """Check that one run writes everything, and the product."""
    a, b = case.inputs()
    yield from numbers(case, "once", case.run(a, b), a, b)


def repeated(case: Case) -> Iterator[Check]:
    """Check that further runs on the same inputs give the same bits, each into fresh poison.

    Nothing waits for the device in between, so that a run also meets what the one before it left behind.
    """
    a, b = case.inputs()
    yield from compared(case, "repeated", case.run(a, b).clone(), lambda: case.run(a, b))


def compared(case: Case, label: str, first: Tensor, run: Callable[[], Tensor]) -> Iterator[Check]:
    """Run ``case.repeats`` times, each into poison; count the runs with other bits than ``first``."""
    differs = [differing(run(), first) for _ in range(case.repeats)]
    count = int(torch.stack(differs).sum().item())
    yield case.check(f"{label}: runs of {case.repeats} that differ", count, 0)


def numbers(case: Case, label: str, out: Tensor, a: Tensor, b: Tensor) -> Iterator[Check]:
    """Check a result, which was poison, against the exact product, as a whole and element by element."""
    found = deviation(out, a, b)
    tolerance = TOLERANCES[case.operands.d.dtype]
    yield case.check(f"{label}: elements not finite", not_finite(out), 0)
    yield case.check(f"{label}: relative error", found.relative, tolerance)
    yield case.check(f"{label}: worst element", found.worst_element, WORST_ELEMENT_FACTOR * tolerance)


def _refused(case: Case, a: Tensor, b: Tensor) -> Iterator[Check]:
    """Check that an ``out`` is refused, and nothing of it or around it written."""
    out = case.output(guarded=True)
    accepted = True
    try:
        case.matmul(a, b, out=out.view)
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
    ("repeated", repeated),
)
"""Every group that needs no GPU, with the name that progress and failures show."""
