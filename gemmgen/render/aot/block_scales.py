"""Scales of blocks as a launcher in C takes them: matrices by rows, which TMA or threads read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.render.wrapper import Wrapper

OUTPUT: Final = "d_scales"
"""The kind of the scales that a kernel writes beside D."""
BY_ADDRESS: Final = ("tile_scales", OUTPUT)
"""Kinds of scales that threads access by address; TMA reads all others."""
PASSED: Final = {"d_scale": "out_scale"}
"""Names in the wrapper's tables of arguments that have another name in C."""


@dataclass(frozen=True)
class Scales:
    """The scales of A, B or D in memory."""

    argument: Argument
    letters: str
    """Their dimensions in memory: G groups, B blocks of K, C blocks of B's columns, S blocks of N, M, N."""
    block_k: int
    """Elements of K that share a scale of A or B."""
    block_n: int
    """Columns of B, or of D, that share a scale."""
    columns_of_b: str
    """The columns of B, in C."""

    @property
    def is_by_address(self) -> bool:
        """True if threads access them: rows are a multiple of 16 bytes long, without gaps."""
        return self.argument.kind in BY_ADDRESS

    @property
    def is_output(self) -> bool:
        """True if the kernel writes them."""
        return self.argument.kind == OUTPUT

    def _extent(self, letter: str) -> str:
        """Return an extent in C, as a factor."""
        columns = _factor(self.columns_of_b)
        return {
            "G": "groups",
            "B": f"((k + {self.block_k - 1}) / {self.block_k})",
            "C": f"(({columns} + {self.block_n - 1}) / {self.block_n})",
            "S": f"(n / {self.block_n})",
            "M": "m",
            "N": columns,
        }[letter]

    def _words(self, letter: str) -> str:
        """Return an extent in words."""
        columns = self.columns_of_b.upper().replace(" * ", "")
        return {
            "G": "G",
            "B": f"ceil(K / {self.block_k})",
            "C": f"ceil({columns} / {self.block_n})",
            "S": f"N / {self.block_n}",
            "M": "M",
            "N": columns,
        }[letter]

    @property
    def extents(self) -> tuple[str, str]:
        """The rows of all groups, and the columns, in C."""
        *rows, columns = map(self._extent, self.letters)
        return " * ".join(rows), columns

    @property
    def field(self) -> str:
        """The comment on the member of the caller's arguments."""
        *rows, columns = map(self._words, self.letters)
        matrix = f"{' x '.join(rows)} rows of {columns} {self.argument.dtype.name}"
        written = ", which the kernel writes" * self.is_output
        return f"{matrix}: the scales of {self.argument.name[0].upper()}{written}"


def _factor(text: str) -> str:
    """Return an expression of C as a factor: in brackets unless it is a name."""
    return text if text.isidentifier() else f"({text})"


def scales_of(plan: Kernel, argument: Argument) -> Scales | None:
    """Return the scales of an argument; None if the argument is no scales of blocks."""
    if argument.kind not in ("block_scales", *BY_ADDRESS):
        return None
    problem, wrapper = plan.problem, Wrapper(plan)
    letters = wrapper.axes_of(argument)
    if PASSED.get(argument.name, argument.name) in wrapper.transposed:
        letters = f"{letters[:-2]}{letters[-1]}{letters[-2]}"
    scale = problem.d_scale if argument.kind == OUTPUT else problem.b.scale
    block_n = 1 if scale is None else scale.vector if argument.kind == OUTPUT else scale.format.rows
    return Scales(
        argument,
        letters,
        block_k=problem.a.scale.vector if problem.a.scale else 1,
        block_n=block_n,
        columns_of_b=f"{problem.b_blocks} * n" if problem.gated else "n",
    )
