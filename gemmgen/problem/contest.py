"""Which kernels can be timed against each other: those that compute one matmul and round alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from gemmgen.hardware import DTYPES
from gemmgen.kinds import Sha256
from gemmgen.problem.epilogue import Epilogue, described, listed_steps, written_d
from gemmgen.problem.matmul import Matmul
from gemmgen.problem.request import Request

SHOWN_DIGITS: Final = 12
"""Digits of a key in texts for people."""


@dataclass(frozen=True, order=True)
class Contest:
    """The identity of a problem in records, tables of tuned kernels and libraries.

    Kernels with equal ones can stand for each other and are timed beside one baseline. Sizes and the GPU are
    no part of it.
    """

    matmul: Sha256
    """`Matmul.key` without promises, which bind the kernel and not the product."""
    promoted: bool
    """True if sums must be added up in full fp32, with more bits than tensor cores keep."""

    @classmethod
    def of(cls, matmul: Matmul, *, promoted: bool = False) -> Contest:
        """Return the contest of kernels that compute a matmul."""
        computed = replace(matmul, deterministic=False, batch_invariant=False, backward=False)
        return cls(computed.key, promoted)

    def __str__(self) -> str:
        return f"{self.matmul[:SHOWN_DIGITS]}{'-promoted' if self.promoted else ''}"


def formats_text(problem: Matmul) -> str:
    """Return the formats of A and B, with the types of elements where a format has several."""
    names: list[str] = []
    for operand in (problem.a, problem.b):
        name = operand.scale.format.name if operand.scale else operand.dtype.name
        several = operand.scale is not None and len(operand.scale.format.elements) > 1
        names.append(f"{name} ({operand.dtype.name})" if several else name)
    return names[0] if names[0] == names[1] else " and ".join(names)


def description_of(request: Request, *, promoted: bool = False) -> str:
    """Return the problem in few words, for people: no program compares them."""
    problem = request.matmul
    a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
    if (scale := problem.b.scale) and not problem.block_scaled:
        b = f"{b} ({scale.format.name})"
    words = [a if a == b else f"{a} x {b}"]
    if problem.block_scaled:
        words = [formats_text(problem)]
    usual = {"tf32": "fp32", "int8": "int32"}.get(a, a if DTYPES[a].bits == 16 else "bf16")
    if d != usual:
        words.append(f"to {d}")
    if problem.d_scale:
        words.append(f"with {problem.d_scale.format.name}")
    if problem.accumulator.name not in ("fp32", "int32"):
        words.append(f"summed in {problem.accumulator.name}")
    majors = [operand.major for operand in (problem.a, problem.b)]
    words += [f"{name} {major}-major" for name, major in zip("AB", majors, strict=True) if major != "k"]
    if problem.copies_misaligned:
        words.append("rows of any length")
    if promoted:
        words.append("promoted")
    if problem.interleaved:
        words.append("B interleaved" if problem.gated else "C and D interleaved")
    if groups := problem.groups:
        kind = {
            "m_offsets": "groups",
            "m_masked": "masked groups",
            "batched": "batches",
            "k_offsets": "groups of K",
        }[groups.of]
        words.append(f"in {groups.count} {kind}")
        words += [f"by {index}" for index in groups.row_indices]
        if groups.broadcast:
            words.append(f"of one {groups.broadcast.upper()}")
    terms = list(_terms(problem.epilogue, lists_c=request.lists_c))
    if problem.c is not None and problem.c != problem.d:
        terms.append(f"c {problem.c.name}")
    return " + ".join((" ".join(words), *terms))


def _terms(epilogue: Epilogue, *, lists_c: bool) -> Iterator[str]:
    """Yield the steps of an epilogue, a word or two each; the expression if it is no chain."""
    if not epilogue.is_chain:
        yield written_d(epilogue)
        return
    if epilogue.alpha != 1:
        yield f"{epilogue.alpha:g} alpha"
    if epilogue.beta and not lists_c:
        yield f"{epilogue.beta:g} c" if epilogue.beta != 1 else "c"
    for step in listed_steps(epilogue, lists_c=lists_c):
        stated = "".join(f" {each.value:g}" for each in step.call.parameters)
        yield f"{step.name}{stated}" if step.operation else described(step)
