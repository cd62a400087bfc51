"""The side of a feature in rendering: hooks by which the feature adds to a module.

A feature implements the hooks in its folder of ``gemmgen/features/``. Views of this package get the sides of
one plan, loop over them, and name no feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gemmgen.plan.kernel import Kernel
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Function

KEPT = "stay as they are in `out`, and have any values in a new D"
"""The words about rows of D that a call does not write."""


@dataclass(frozen=True)
class Rendering(ABC):
    """The additions of one feature to the module of one plan."""

    plan: Kernel
    name: ClassVar[str]
    """The variable by which templates reach further members of the side."""

    @property
    @abstractmethod
    def applies(self) -> bool:
        """True if the plan has the feature."""

    @property
    def constants(self) -> Iterable[Constant]:
        """The constants of the feature."""
        return ()

    @property
    def functions(self) -> Iterable[Function]:
        """The templates of the feature's functions, callees first in each section."""
        return ()

    @property
    def issue_mmas(self) -> str:
        """The template with which the feature replaces `issue_mmas` of a Hopper module; empty if it does not.

        Its function brings the instruction's left operand to registers, and none of its MMAs runs on return.
        No two features of a kernel replace it.
        """
        return ""

    @property
    def imported(self) -> Iterable[tuple[str, str]]:
        """Pairs of a module and a name that the feature's functions import.

        The module is one of Gluon's for NVIDIA GPUs, or ``cuda`` for Triton's functions for CUDA.
        """
        return ()

    @property
    def sentences(self) -> Iterable[str]:
        """Sentences about how the kernel works, for the module's docstring."""
        return ()

    @property
    def docs(self) -> Mapping[str, str]:
        """Words about parameters of `matmul`, by their names.

        A parameter of the feature has all of its words here; words about another one follow that one's own.
        """
        return {}

    @property
    def facts(self) -> Iterable[str]:
        """Rows of COMPUTES, the facts of a module that a caller may read without a launch."""
        return ()

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return the parts of the epilogue with the changes of the feature.

        The sides of a plan change them in turn, in the order of the table of features, and each keeps what
        it does not change. No two of them change one member. Of readers, the one that is put before the
        others is asked first.
        """
        return parts


Sides = tuple[Rendering, ...]
"""The sides of the features that one plan has, in the order of the table of features."""
SidesOf = Callable[[Kernel], Sides]
"""A function that returns the sides of a plan."""
SidesByMma = Mapping[str, tuple[type[Rendering], ...]]
"""The sides of one feature by the instruction of the kernels that they are made of."""
