"""How the function of an epilogue reads its operands: from buffers that TMA has filled, or in another way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gemmgen.plan.kernel import Kernel
from gemmgen.problem.epilogue import Load

ACROSS = {"row": "[:, None]", "column": "[None, :]"}
"""The indices with which a row or column operand broadcasts to a tile."""


def tiles_of(plan: Kernel) -> tuple[str, ...]:
    """Return the variables of the accumulators, in the function that computes D from them."""
    accumulators = plan.problem.epilogue.accumulators
    return accumulators if len(accumulators) > 1 else ("tile",)


def variable_of(load: Load) -> str:
    """Return the variable of a loaded operand: of one accumulator's elements, with the accumulator's name."""
    return load.block or (f"{load.accumulator}_{load.tensor}" if load.accumulator else load.tensor)


def widened(plan: Kernel, load: Load) -> str:
    """Return the conversion of a loaded operand to fp32; empty if it needs none."""
    dtype = plan.problem.c if load.operand == "matrix" else plan.problem.vector_dtype(load.tensor)
    return "" if dtype is None or dtype.name == "fp32" else ".to(gl.float32)"


@dataclass(frozen=True)
class Read:
    """The lines that read an operand."""

    kind: str
    """The kind of the lines. The template of the function has a branch for each kind."""
    tensor: str
    variables: tuple[str, ...]
    """The variables that the lines define."""
    widened: str = ""
    """The conversion of the operand to fp32, if it needs one."""
    number: int = 0
    """The number of the accumulator whose elements are read, or of the one that is beside them."""
    is_ahead: bool = False
    """True if the lines come before all steps; else before the first step that needs the operand."""
    place: str = ""
    """The indices of elements that are read by address."""
    inside: str = ""
    """The condition that elements which are read by address are inside the operand."""

    @property
    def variable(self) -> str:
        """The variable, of a read that defines one."""
        (variable,) = self.variables
        return variable


@dataclass(frozen=True)
class Reader(ABC):
    """A way in which the function reads some of its operands."""

    plan: Kernel

    @abstractmethod
    def takes(self, load: Load) -> bool:
        """Return True if the operand can be read in this way."""

    @abstractmethod
    def read(self, load: Load) -> Read:
        """Return the lines that read an operand, or find it in shared memory."""

    @abstractmethod
    def spelled(self, load: Load) -> str:
        """Return an operand as it broadcasts to a tile, after these lines."""

    @property
    def places(self) -> tuple[str, ...]:
        """The parameters that place the elements of operands which are read by address."""
        return ()

    @property
    def facts(self) -> tuple[str, ...]:
        """The parameters among them that a tile has beside its place."""
        return ()

    @property
    def indexed(self) -> tuple[str, ...]:
        """The dimensions along which the function itself computes indices of elements."""
        return ()


@dataclass(frozen=True)
class BufferReader(Reader):
    """The reads of buffers that TMA has filled."""

    def takes(self, load: Load) -> bool:  # noqa: ARG002  TMA can load all operands
        """Return True: TMA can load each operand."""
        return True

    def read(self, load: Load) -> Read:
        """Return the lines that read an operand, or find it in shared memory."""
        kind = "c" if load.operand == "matrix" else load.operand
        return Read(kind, load.tensor, (variable_of(load),), widened(self.plan, load))

    def spelled(self, load: Load) -> str:
        """Return an operand as it broadcasts to a tile; a column operand is read where it is used."""
        own = variable_of(load)
        if load.operand == "column":
            own += f".load(gl.SliceLayout(0, tile.type.layout)){widened(self.plan, load)}"
        return own + ACROSS.get(load.operand, "")
