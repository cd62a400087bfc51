"""The facts by which a launcher launches a compiled kernel: parameters in order, threads, memory, cluster.

The launcher in C has the facts that a plan promises, which `export` compares with the compiled kernel; the
launcher of a pack reads the facts of the compiled kernel itself, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gemmgen.triton_api import TensorMap

TENSOR_MAP_BYTES = 128  # [cuda] sizeof(CUtensorMap)
TENSOR_MAP_ALIGNMENT_BYTES = 64  # [gluon] of the parameter; cuda.h may ask for more where it is a variable


@dataclass(frozen=True)
class Parameter:
    """Bytes and alignment of a parameter of the kernel."""

    bytes: int
    alignment: int


POINTER = Parameter(8, 8)
SCRATCH = (POINTER, POINTER)
"""The last parameters of a kernel: scratch memory of Triton."""
NUMBERS = {"i32": Parameter(4, 4), "i64": Parameter(8, 8)}
"""The parameters that are numbers, by their types in Triton's words."""


@dataclass(frozen=True)
class Passed:
    """An argument of a kernel, which can be several parameters."""

    name: str
    """The name in the kernel's source."""
    kind: Literal["map", "pointer", "i32", "i64"]
    """A descriptor of TMA, an address or a number."""
    map: TensorMap | None = None
    """The descriptor as the kernel is compiled for it."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters: of a descriptor the map, each extent, and each stride."""
        if self.kind == "pointer":
            return (POINTER,)
        if self.map is None:
            return (NUMBERS[self.kind],)
        rank = len(self.map.box)
        tensor_map = Parameter(TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT_BYTES)
        return (tensor_map, *(NUMBERS["i32"],) * rank, *(NUMBERS["i64"],) * rank)


@dataclass(frozen=True)
class KernelFacts:
    """A kernel as a launcher needs to know it."""

    entry: str
    """The name of the kernel in its machine code."""
    arguments: tuple[Passed, ...]
    """In the kernel's order."""
    threads: int
    """Threads of a CTA."""
    smem_bytes: int
    """Bytes of dynamic shared memory of a CTA."""
    cluster_ctas: int
    is_dependent: bool
    """True if the kernel may start before the one ahead of it in the stream ends (PDL)."""
    scratch_bytes: int = 0
    """Memory of Triton for each CTA, which no launcher but Triton's own provides."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters of the kernel, in order."""
        own = (parameter for argument in self.arguments for parameter in argument.parameters)
        return (*own, *SCRATCH)

    @property
    def maps(self) -> Iterator[Passed]:
        """The arguments that are descriptors of TMA."""
        return (argument for argument in self.arguments if argument.map)

    def as_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KernelFacts:
        """Return the facts that `as_dict` returned; raises LookupError or TypeError for other values."""
        arguments = (Passed(each["name"], each["kind"], _map_of(each["map"])) for each in values["arguments"])
        found: dict[str, Any] = {**values, "arguments": tuple(arguments)}
        return cls(**found)


def _map_of(values: Mapping[str, Any] | None) -> TensorMap | None:
    if not values:
        return None
    found: dict[str, Any] = {**values, "box": tuple(values["box"])}
    return TensorMap(**found)


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a module as the compiler made it."""

    facts: KernelFacts
    ptx: str
    cubin: bytes


# --- facts compared with code


def code_differences(facts: KernelFacts, ptx: str) -> Iterator[str]:
    """Yield each difference between facts and the PTX of the kernel: parameters, scratch memory, threads."""
    expected = [(parameter.bytes, parameter.alignment) for parameter in facts.parameters]
    found = [*_parameters_in(ptx, facts.entry)]
    if found != expected:
        yield f"the launcher passes parameters of {_sizes(expected)} bytes, the compiler has {_sizes(found)}"
        return
    first = len(expected) - len(SCRATCH)
    if re.search(rf"ld\.param\S*\s[^\n]*{facts.entry}_param_({first}|{first + 1})\b", ptx):
        yield "the launcher passes no scratch memory, the compiled kernel uses it"
    threads, ctas = (
        int(match[1]) if (match := re.search(rf"^\.{name} (\d+)", ptx, re.MULTILINE)) else 1
        for name in ("reqntid", "reqnctapercluster")
    )
    if (threads, ctas) != (facts.threads, facts.cluster_ctas):
        planned = f"{facts.threads} threads and {facts.cluster_ctas} CTAs"
        yield f"the launcher starts clusters of {planned}, the compiler has {threads} and {ctas}"


def _parameters_in(ptx: str, entry: str) -> Iterator[tuple[int, int]]:
    """Yield the bytes and the alignment of each parameter of a kernel: an array states the latter."""
    declared = rf"\.param (?:\.align (\d+) )?\.[bu](\d+)[^,\n]*{entry}_param_\d+(?:\[(\d+)\])?"
    for alignment, bits, count in re.findall(declared, ptx):
        yield int(bits) // 8 * int(count or 1), int(alignment or int(bits) // 8)


def _sizes(parameters: list[tuple[int, int]]) -> str:
    return " ".join(f"{size}@{alignment}" for size, alignment in parameters)
