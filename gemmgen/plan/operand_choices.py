"""Element types, packings and formats of scales of A and B that no kernel of a GPU has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gemmgen.hardware import DTYPES, FP8, GPUS, SCALE_FORMATS, DType, Gpu, ScaleFormat
from gemmgen.plan.fix import either, leave_out, use
from gemmgen.plan.rule import Finding
from gemmgen.spec.model import InputB, Operands


def _multiplied(dtype: DType) -> bool:
    """Return True if an instruction of some GPU multiplies elements of a type, with scales or without."""
    scaled = any(dtype.name in each.elements and "mma" in each.applied for each in SCALE_FORMATS.values())
    return bool(scaled or dtype.wgmma_accumulators or dtype.tcgen05_kind)


ONLY_DECODED: Final = frozenset(
    name for name, dtype in DTYPES.items() if dtype.operand and not _multiplied(dtype)
)
"""The types of weights that no instruction multiplies."""


def foreign_operands(operands: Operands, gpu: Gpu) -> Iterator[Finding]:
    """Yield the findings of A and of B."""
    yield from _Stated(operands, gpu, "a").findings()
    yield from _Stated(operands, gpu, "b").findings()


@dataclass(frozen=True)
class _Stated:
    """An operand as a spec states it, for a GPU."""

    operands: Operands
    gpu: Gpu
    name: Literal["a", "b"]

    @property
    def field(self) -> str:
        """The path of the operand."""
        return f"operands.{self.name}"

    @property
    def operand(self) -> InputB:
        """The operand."""
        return self.operands.a if self.name == "a" else self.operands.b

    @property
    def other(self) -> _Stated:
        """The other operand."""
        return _Stated(self.operands, self.gpu, "b" if self.name == "a" else "a")

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return DTYPES[self.operand.dtype]

    @property
    def scale(self) -> ScaleFormat | None:
        """The format of its scales; None if it has none."""
        return SCALE_FORMATS[self.operand.scale.format] if self.operand.scale else None

    @property
    def mma(self) -> str:
        """The matrix instruction of the GPU."""
        return self.gpu.architecture.mma

    @property
    def words(self) -> str:
        """The operand and its type, in words."""
        return f"{'an A' if self.name == 'a' else 'a B'} of {self.dtype.name}"

    @property
    def decoded(self) -> bool:
        """True if threads decode it: it has elements, and scales of a format, for that."""
        scale = self.scale
        if scale is None or self.dtype.name not in scale.elements:
            return False
        return scale.applied_by(self.mma, self.name) == "decode"

    @property
    def multiplied(self) -> bool:
        """True if the instruction multiplies its elements, or the rules of its kernels say why not."""
        if self.mma == "wgmma":
            return bool(self.dtype.wgmma_accumulators)
        return self.dtype.name not in ONLY_DECODED

    def formats(self, gpu: Gpu, *elements: str) -> list[ScaleFormat]:
        """Return the formats of scales that kernels of a GPU have for the operand, with these elements.

        Where threads decode, formats for the other operand's type come first.
        """
        found = [
            each
            for each in SCALE_FORMATS.values()
            if {*each.elements} & {*elements}
            and self.name in each.operands
            and each.applied_by(gpu.architecture.mma, self.name)
        ]
        return sorted(found, key=lambda each: each.decoded_to not in ("", self.other.dtype.name))

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each choice that no kernel of the GPU has."""
        packing, dtype = self.operand.packing, self.dtype
        if packing is not None and dtype.bits != 4:
            limit = "it is a choice for 4-bit elements"
            yield Finding(f"{self.field}.packing", f"{packing} for {dtype.name}", limit, leave_out())
        if self.decoded:
            if packing is not None:
                found, limit = f"{packing} for {dtype.name} weights", "`pack_weight` packs them in one way"
                yield Finding(f"{self.field}.packing", found, limit, leave_out())
            return
        formats = self.formats(self.gpu, dtype.name)
        if not self.multiplied and not (self.scale and formats):
            yield self._foreign_elements([each.name for each in formats])
        if self.scale and (formats or dtype.name not in ONLY_DECODED):
            yield from self._foreign_format(self.scale)

    def _foreign_elements(self, formats: list[str]) -> Finding:
        """Return the finding of elements that the instruction does not multiply.

        Threads decode a B with scales of the formats.
        """
        dtype, scale = self.dtype, f"{self.field}.scale"
        plain = use(*self._multiplied_types())
        if self.scale and dtype.name in ONLY_DECODED:
            plain &= leave_out(scale)  # else a finding of its own says so
        known = {gpu: self.formats(gpu, dtype.name) for gpu in GPUS.values()}
        others = [gpu for gpu, there in known.items() if there]
        elsewhere = use(*(gpu.target for gpu in others), field="target")
        if formats:
            limit = f"{self.mma} multiplies no 4-bit elements, and threads decode only a B with scales of "
            limit += either(formats)
            fix = use(*formats, field=f"{scale}.format") | plain
        elif dtype.name not in ONLY_DECODED:
            limit = f"{self.mma} multiplies no 4-bit elements, only tcgen05 does, which "
            limit += f"{either([gpu.name for gpu in others])} has"
            fix = plain | elsewhere
        elif self.name == "a":
            limit = f"no instruction multiplies {dtype.name}, and threads decode weights only, a B"
            fix = plain
        else:
            limit = f"only kernels of Hopper decode {dtype.name} weights"
            if self.scale is None:
                elsewhere = use(known[others[0]][0].name, field=f"{scale}.format") & elsewhere
            fix = elsewhere | plain
        found = f"{self.name.upper()} is {dtype.name} for {self._target}"
        return Finding(f"{self.field}.dtype", found, limit, fix)

    def _multiplied_types(self) -> tuple[str, ...]:
        """Return the types that the operand can have instead of one that is not multiplied."""
        other = self.other
        if self.name == "a" and other.formats(self.gpu, other.dtype.name) and not other.multiplied:
            return (other.scale.decoded_to,) if other.decoded and other.scale else ("bf16", *FP8)
        return (other.dtype.name,) if other.dtype.bits == 16 else (*FP8, "bf16")

    def _foreign_format(self, stated: ScaleFormat) -> Iterator[Finding]:
        """Yield a finding for scales of a format that kernels of the GPU do not have for the operand.

        Formats of the GPU with as many elements of K in a block are proposed first, and of these, for
        weights, blocks of more rows.
        """
        if stated.applied_by(self.mma, self.name) not in (None, "decode"):
            return
        generation, field = self.gpu.architecture.generation, f"{self.field}.scale"
        generations = stated.generations("b")  # a format that A can have is a format of B too
        own = self.multiplied or self.formats(self.gpu, self.dtype.name)
        elements = (self.dtype.name,) if own else self._multiplied_types()
        # Beside weights that threads decode, A has no scales.
        known = [] if self.other.decoded else self.formats(self.gpu, *elements)
        known.sort(key=lambda each: (each.vector != stated.vector, -each.rows))
        formats = [each.name for each in known]
        others = [gpu for gpu in GPUS.values() if stated in self.formats(gpu, self.dtype.name)]
        fix = leave_out(field) | use(*(gpu.target for gpu in others), field="target")
        if generation in generations:
            found = f"{stated.name} for {self.words}"
            limit = f"on {generation} it is a format of weights, a B of {either(stated.elements)}"
            if self.name == "b":
                fix = use(*stated.elements, field=f"{self.field}.dtype") | fix
        else:
            found = f"{stated.name} for {self._target}"
            limit = f"it is a format of {either(generations)}, and on {generation} "
            limit += f"{self.words} has {f'scales of {either(formats)}' if formats else 'no scales'}"
        if self.mma == "wgmma":
            fix = use(*formats) | fix
        yield Finding(f"{field}.format", found, limit, fix)

    @property
    def _target(self) -> str:
        """The GPU and its architecture, in words."""
        return f"{self.gpu.name} ({self.gpu.architecture.name})"
