"""The side of a feature that checks and baselines loop over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from gemmgen.numerics.case import Case
from gemmgen.numerics.inputs import Numbers
from gemmgen.numerics.reference import Check
from gemmgen.numerics.torch_call import Head


@dataclass(frozen=True)
class Held:
    """Tensors that a group of checks has in memory at once."""

    inputs: int = 1
    """Sets of inputs."""
    outputs: int = 1
    """Matrices D."""
    workspaces: int = 1
    """Workspaces of the kernel: each stream and each CUDA graph has its own."""
    other_bytes: int = 0


ONE_RUN: Final = Held()
TWO_RUNS: Final = Held(outputs=2)
"""One result is compared with another one."""


@dataclass(frozen=True)
class CheckGroup:
    """Checks that share their runs of the kernel."""

    name: str
    """The name that progress and failures show."""
    checks: Callable[[Case], Iterator[Check]]
    held: Held = ONE_RUN
    """Tensors that the checks have in memory at once."""
    first: bool = False
    """True if the group must run before the groups for all modules."""


class Checking(Numbers, Protocol):
    """The side of one feature of a matmul that checks need. By default, a method adds nothing."""

    def check_groups(self) -> tuple[CheckGroup, ...]:
        """Return the groups of checks that only modules with the feature must pass; they need no GPU."""
        return ()

    def head(self, *, fast_accum: bool) -> Head | None:  # noqa: ARG002
        """Return the call of torch that multiplies; None if the feature needs no call of its own.

        ``fast_accum`` says whether sums of 8-bit floats may stay in the tensor cores for all of K. Raises
        GemmgenError (``no-baseline``) if torch has no call.
        """
        return None
