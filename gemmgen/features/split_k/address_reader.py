"""The reads of the kernel that adds up the sums of parts of K: of all operands by address."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.problem.epilogue import Load
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.operand_loads import axes_of_vectors
from gemmgen.render.operand_reads import ACROSS, Read, Reader, variable_of, widened

INDICES = {"m": "rows", "n": "columns"}
"""The indices of elements along the dimensions of D."""


@dataclass(frozen=True)
class AddressReader(Reader):
    """The reads of all operands by address, at the rows and columns of a piece of a tile."""

    def takes(self, load: Load) -> bool:  # noqa: ARG002  the kernel loads nothing by TMA
        """Return True: the kernel loads nothing by TMA."""
        return True

    def read(self, load: Load) -> Read:
        """Return the lines that read an operand by address."""
        variables, conversion = (variable_of(load),), widened(self.plan, load)
        if load.operand == "matrix":
            return Read("c_read", load.tensor, variables, conversion)
        axis = OPERATIONS[load.tensor].along
        inside = f"{INDICES[axis]} < args.{axis}"
        return Read("vector_read", load.tensor, variables, conversion, place=INDICES[axis], inside=inside)

    def spelled(self, load: Load) -> str:
        """Return an operand as it broadcasts to a piece."""
        return variable_of(load) + ACROSS.get(load.operand, "")

    @property
    def places(self) -> tuple[str, ...]:
        """The parameters that place the elements of its operands."""
        problem = self.plan.problem
        axes = axes_of_vectors(problem.vectors)
        read = [name for axis, name in INDICES.items() if problem.c or axis in axes]
        return ("args", *read) if read else ()
