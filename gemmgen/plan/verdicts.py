"""The compiler's verdicts on the registers of kernels: a shipped table, and the verdicts of this run.

No formula gives the registers that the compiler needs. So the rules require the registers that a kernel holds
by construction. Spills are looked up here, by a digest of the kernel and for one release of Triton.
``benchmarks/registers/record.py`` fills the table by compiling.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from gemmgen.json_files import read_json
from gemmgen.kinds import OneLine, matching
from gemmgen.plan.decisions import statements
from gemmgen.plan.kernel import Kernel
from gemmgen.spec.spelling import before

COMPILER_RULE: Final = "compiler-registers"
"""The id of the rule of each family that has the compiler's word."""
SHIPPED: Final = Path(__file__).with_name("verdicts.json")
"""The table that is part of the package."""
DIGEST_DIGITS: Final = 16
"""Hexadecimal digits of a kernel's digest: 64 bits, in which hardly two of a million kernels agree."""
_Digest = Annotated[str, matching(f"[0-9a-f]{{{DIGEST_DIGITS}}}", f"{DIGEST_DIGITS} hexadecimal digits")]


@dataclass(frozen=True)
class Verdict:
    """The compiler's verdict on the registers of one kernel."""

    registers: int
    """Registers per thread with which the kernel is compiled, before roles request others."""
    spilled_bytes: int
    """Bytes per thread that do not fit into registers and go through memory."""
    notes: tuple[OneLine, ...] = ()
    """Numbers of ptxas's notes, ``C7512``: that MMAs are serialized, or a request for registers ignored."""

    @property
    def fits(self) -> bool:
        """True if the kernel runs in its registers, with its MMAs as they are planned."""
        return not (self.spilled_bytes or self.notes)

    def __str__(self) -> str:
        """The fault in words, or the registers of a kernel without a fault."""
        if self.spilled_bytes:
            return f"{self.spilled_bytes:,} bytes per thread spill"
        if self.notes:
            return f"ptxas serializes MMAs or ignores a request ({', '.join(self.notes)})"
        return f"{self.registers} registers per thread, and nothing spills"


@dataclass(frozen=True)
class Table:
    """The contents of a file of verdicts."""

    triton: str
    """The version of the compiler."""
    kernels: Mapping[str, Verdict]
    """By the kernel's digest."""


def kernel_digest(kernel: Kernel) -> str:
    """Return the digest of all that decides a kernel's device code: 16 hexadecimal digits.

    It covers the matmul, the decisions that a spec can state, and the architecture. Absent features are left
    out, so a new decision leaves the digests of known kernels as they are. So does a change of the templates,
    which records the verdicts anew.
    """
    return _digest(kernel, statements(kernel))


UNHELD: Final = frozenset(
    {
        *("cluster.m", "cluster.n", "buffering.stages", "buffering.epilogue"),
        *("schedule.order", "schedule.minor", "schedule.width"),
    }
)
"""Decisions on which the registers of a thread hardly depend.

[gluon] About 150 kernels were lowered with registers that suffice and with 8 less, and 700 at the border: the
order of tiles, the ring and the cluster do not matter (``gemmgen/plan/wgmma/bounds.py``). Kernels spill as
many bytes with one buffer of D as with two.
"""
OF_MMAS: Final = frozenset(
    {
        *("operands.a.source", "mma.swap_ab", "mma.promote_k"),
        *("buffering.outstanding_mmas", "warp_specialization.kind"),
    }
)
"""Decisions on which it depends whether ptxas serializes MMAs that have the registers for their sums.

[gluon] Where it does so (C7514), it does in tiles of other sizes too, and no more without an MMA in flight.
"""


def alike_digests(kernel: Kernel) -> tuple[str, str]:
    """Return digests of the decisions that decide spills and serialized MMAs: 16 hexadecimal digits each.

    If the compiler has refused a kernel for one of both causes, it most likely refuses another one with this
    digest too.
    """
    stated = statements(kernel)
    threads = {path: value for path, value in stated.items() if path not in UNHELD}
    mmas = {path: value for path, value in stated.items() if path in OF_MMAS}
    return _digest(kernel, {"of": "threads", **threads}), _digest(kernel, {"of": "mmas", **mmas})


def cause_digest(kernel: Kernel, verdict: Verdict) -> str:
    """Return the one of `alike_digests` that a refusal of a kernel is put down to."""
    threads, mmas = alike_digests(kernel)
    return threads if verdict.spilled_bytes else mmas


def _digest(kernel: Kernel, decisions: dict[str, int | str]) -> str:
    """Return the digest of some decisions of a kernel, with its matmul and its target."""
    decisive = [kernel.gpu.architecture.name, kernel.problem.key, before(decisions)]
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("ascii")).hexdigest()[:DIGEST_DIGITS]


# --- what is known

_LEARNT: ContextVar[Mapping[str, Verdict]] = ContextVar("verdicts", default=MappingProxyType({}))


def verdict_of(kernel: Kernel) -> Verdict | None:
    """Return the verdict on a kernel from the shipped table or an enclosing `knowing`, or None."""
    digest = kernel_digest(kernel)
    return _LEARNT.get().get(digest) or shipped().kernels.get(digest)


def refusal_of(kernel: Kernel) -> str | None:
    """Return in words that a kernel is known to have too few registers; None if that is not known.

    In an enclosing `knowing`, so has a kernel with the `cause_digest` of a refused one.
    """
    verdict, which = verdict_of(kernel), "this kernel"
    if verdict is None and (learnt := _LEARNT.get()):
        alike = (learnt[digest] for digest in alike_digests(kernel) if digest in learnt)
        verdict, which = next(alike, None), "a kernel whose threads do the same"
    if verdict is None or verdict.fits:
        return None
    return f"{verdict} as Triton {shipped().triton} compiles {which}"


@contextmanager
def knowing(verdicts: Mapping[str, Verdict]) -> Generator[None]:
    """Let the planner know more verdicts, by kernels' digests, for as long as the context lasts.

    The verdict on a refused kernel may also have its `cause_digest`.
    """
    token = _LEARNT.set({**_LEARNT.get(), **verdicts})
    try:
        yield
    finally:
        _LEARNT.reset(token)


NOT_CONFIRMED: Final = (
    "not confirmed by the compiler: gemmgen build compiles this kernel, and if its registers are too few, "
    "it compiles the next plan that the spec allows"
)
"""Words about a plan without a verdict."""


@dataclass(frozen=True)
class Standing:
    """The evidence that a plan has enough registers."""

    state: Literal["predicted", "verified"]
    triton: str | None = None
    """The version of the compiler that has verified it."""

    def __str__(self) -> str:
        return self.state if self.triton is None else f"{self.state} (Triton {self.triton})"

    @property
    def consequence(self) -> str:
        """The words that follow the evidence, about a build; empty if nothing is left to confirm."""
        return "" if self.state == "verified" else f", and {NOT_CONFIRMED}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {**asdict(self), "confirmed": self.state == "verified", "text": f"{self}{self.consequence}"}

    @property
    def note(self) -> str:
        """The evidence in words without parentheses: ``verified by Triton 3.9.0``."""
        return self.state if self.triton is None else f"{self.state} by Triton {self.triton}"


def standing_of(kernel: Kernel) -> Standing:
    """Return whether the compiler is known to have said that a kernel's registers are enough."""
    verdict = verdict_of(kernel)
    return Standing("verified", shipped().triton) if verdict and verdict.fits else Standing("predicted")


@dataclass(frozen=True)
class PassedOver:
    """A kernel that ranks before the planned one, and that the compiler has refused."""

    kernel: OneLine
    """Its digest."""
    label: OneLine
    """Its decisions in one line."""
    verdict: Verdict
    cause: OneLine | None = None
    """Its `cause_digest` if kernels with that digest are passed over uncompiled; else None."""

    def __str__(self) -> str:
        return f"{self.label}: {self.verdict}"


def learnt_of(passed_over: Iterable[PassedOver]) -> dict[str, Verdict]:
    """Return the verdicts on kernels that were passed over, by the digests that `knowing` reads."""
    digests = ((digest, each.verdict) for each in passed_over for digest in (each.kernel, each.cause))
    return {digest: verdict for digest, verdict in digests if digest}


# --- files


@dataclass(frozen=True)
class _Document:
    """A file of verdicts as JSON has it."""

    triton: OneLine
    kernels: Mapping[_Digest, tuple[int, int, tuple[OneLine, ...]]]
    """Registers, spilled bytes and notes."""


@cache
def shipped() -> Table:
    """Return the table that is part of the package."""
    return read_table(SHIPPED)


def read_table(path: Path) -> Table:
    """Return the contents of a file of verdicts.

    Raises:
        GemmgenError: ``bad-verdicts`` for a file that cannot be read, or that holds something else.
    """
    document = read_json(_Document, path, "bad-verdicts")
    return Table(document.triton, {digest: Verdict(*row) for digest, row in document.kernels.items()})


def table_text(table: Table) -> str:
    """Return a table as JSON: a line for each kernel, in the order of digests, so that two files merge."""
    rows = ",\n    ".join(
        f"{json.dumps(digest)}: {json.dumps([each.registers, each.spilled_bytes, [*each.notes]])}"
        for digest, each in sorted(table.kernels.items())
    )
    return f'{{\n  "triton": {json.dumps(table.triton)},\n  "kernels": {{\n    {rows}\n  }}\n}}\n'
