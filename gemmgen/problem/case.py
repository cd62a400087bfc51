"""One problem given to one kernel, and whether the numbers of a run of it are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmgen.module import Matmul
from gemmgen.problem.check import Check
from gemmgen.problem.dtype import TORCH_DTYPES, not_finite
from gemmgen.problem.inputs import Inputs, random_inputs
from gemmgen.problem.matrix import Matrix, takes_out
from gemmgen.problem.reference import deviation
from gemmgen.problem.shape import Shape
from gemmgen.problem.tolerance import tolerance
from gemmgen.spec.model import Spec


@dataclass(frozen=True)
class Case:
    """A kernel to be checked on one shape."""

    matmul: Matmul
    shape: Shape
    spec: Spec
    generator: torch.Generator
    """Draws the inputs on the device under test; each group of checks draws its own."""
    repeats: int
    pack_scales: Callable[[Tensor], Tensor] | None = None
    """Of the same module, where operands are block-scaled."""

    @property
    def device(self) -> torch.device:
        """Where the kernel runs."""
        return self.generator.device

    def inputs(self, *, guarded: bool = False) -> Inputs:
        """Return fresh random inputs, each as the spec wants it."""
        return random_inputs(self.shape, self.spec, self.generator, guarded=guarded)

    def output(self, *, guarded: bool = False) -> Matrix:
        """Return a poisoned d [M, N]."""
        return Matrix.poisoned(*self.shape[:2], self.spec.operands.d.dtype, self.device, guarded=guarded)

    @property
    def d_dtype(self) -> torch.dtype:
        """Element type of d."""
        return TORCH_DTYPES[self.spec.operands.d.dtype]

    @property
    def takes_out(self) -> bool:
        """Whether the wrapper must accept an ``out`` of this shape; if not, it must refuse every one."""
        return takes_out(self.shape[1], self.d_dtype)

    def run(self, inputs: Inputs) -> Tensor:
        """Run the kernel once into poison, an ``out`` where it takes one, and return d [M, N]."""
        return inputs.call(self.matmul, self.output().view) if self.takes_out else self.run_alone(inputs)

    def run_alone(self, inputs: Inputs) -> Tensor:
        """Run the kernel once into the d that the wrapper allocates, which is poison too, and return it."""
        self.output()  # freed at once: on a GPU the next request of this size, which is d's, gets its block
        return inputs.call(self.matmul)

    def check(self, what: str, measured: float, limit: float) -> Check:
        """Return a check of this case's shape."""
        return Check(self.shape, what, float(measured), limit)


def once(case: Case) -> Iterator[Check]:
    """Check that one run writes everything, and the right numbers."""
    inputs = case.inputs()
    yield from numbers(case, "once", case.run(inputs), inputs)


def numbers(case: Case, label: str, out: Tensor, inputs: Inputs) -> Iterator[Check]:
    """Check a result, which was poison, against the exact one, as a whole and element by element."""
    found = deviation(out, inputs, case.spec)
    allowed = tolerance(case.spec, case.shape)
    yield case.check(f"{label}: elements not finite", not_finite(out), 0)
    yield case.check(f"{label}: relative error", found.relative, allowed.relative)
    yield case.check(f"{label}: worst element", found.worst_element, allowed.worst_element)
