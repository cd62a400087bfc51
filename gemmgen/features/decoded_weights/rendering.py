"""The side of decoded weights in rendering: the function that decodes, and its layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.features.decoded_weights.code_place import CodePlace
from gemmgen.features.decoded_weights.parts import decoded_k
from gemmgen.hardware import DType
from gemmgen.hardware.elements import WEIGHT_BLOCK
from gemmgen.literals import python_literal
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class DecodedWeights(Rendering):
    """A B that threads decode in registers, of a Hopper plan."""

    plan: WgmmaKernel
    name = "decoded_weights"

    @property
    def applies(self) -> bool:
        """True if threads decode B."""
        return self.plan.problem.b.decoded is not None

    @property
    def _scale(self) -> BlockScale:
        """The scales of B, of a plan that decodes it."""
        assert self.plan.problem.b.scale is not None
        return self.plan.problem.b.scale

    @property
    def element(self) -> str:
        """The type of B's elements in memory."""
        return self.plan.problem.b.dtype.name

    @property
    def float(self) -> DType:
        """The type that threads decode B to."""
        return self.plan.problem.b.multiplied

    @property
    def code_place(self) -> CodePlace:
        """The place of an element, of another type than e2m1, in the bits of that type."""
        return CodePlace(self.plan.problem.b.dtype, self.float)

    @property
    def columns(self) -> str:
        """The constant that holds the columns of B of a tile."""
        return "PRODUCT_TILE_N" if self.plan.problem.gated else "PROGRAM_TILE_N"

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The sums of an element of D."""
        return self.plan.problem.epilogue.accumulators

    @property
    def bits(self) -> int:
        """Bits of an element of B in memory."""
        return self.plan.problem.b.dtype.bits

    @property
    def torch_element(self) -> str:
        """The type that torch has for elements of B."""
        return self.plan.problem.b.dtype.torch

    @property
    def in_word(self) -> int:
        """Elements of B in a word of 32 bits; in a byte if elements choose their numbers."""
        return (8 if self.by_table else 32) // self.bits

    @property
    def is_integer(self) -> bool:
        """True if elements are integers, which are stored plus their middle."""
        return self.plan.problem.b.dtype.integer

    @property
    def middle(self) -> int:
        """The number that an integer is stored plus."""
        return 1 << self.bits - 1

    @property
    def has_factor(self) -> bool:
        """True if `pack_weight` also returns a factor of the whole weight."""
        return self._scale.format.factor == "tensor_scale"

    @property
    def by_table(self) -> bool:
        """True if elements choose their numbers from a table of the block, which e4m3 is small enough for."""
        return self.float.bits == 8

    @property
    def scale_format(self) -> str:
        """The name of the format of B's scales."""
        return self._scale.format.name

    @property
    def scales_in_word(self) -> int:
        """Scales of blocks one after the other in an element of the scales."""
        return self._scale.format.per_word

    @property
    def vector(self) -> int:
        """Elements of K that share a scale."""
        return self._scale.vector

    @property
    def scale_k(self) -> int:
        """Elements of K whose scales are one element of the scales that the kernel reads."""
        return self.plan.problem.b.scale_k

    @property
    def scales_meaning(self) -> str:
        """The type and the limit of the scales that are packed."""
        if self.element == "e2m1":
            return {
                "ue8m0": "float8_e8m0fnu or its bytes, powers of two up to 2",
                "e4m3": "float8_e4m3fn from 0 on",
            }[self._scale.dtype.name]
        number = (
            f"(code - {'zero' if self.has_zeros else self.middle})" if self.element == "int4" else "element"
        )
        limit = f"{self.float.name} or another float below {self.code_place.limit:g}"
        return f"{limit}: a weight is {number} * scale"

    @property
    def has_zeros(self) -> bool:
        """True if a block has a zero point of its own."""
        return self._scale.format.zeros

    @property
    def scale_bits(self) -> int:
        """Bits of an element of the scales."""
        return self.plan.problem.b.scale_dtype.bits

    @property
    def part_scales(self) -> int:
        """Elements of the scales of a column in the K that is decoded at a time."""
        return max(1, self.decoded_k // self.scale_k)

    @property
    def word_has_parts(self) -> bool:
        """True if an element of the scales is a word with scales for both parts of a step."""
        return self.scales_in_word > 1 and self.scale_k > self.decoded_k

    @property
    def decoded_k(self) -> int:
        """Elements of K that are decoded at a time."""
        return decoded_k(self.plan)

    @property
    def parts(self) -> int:
        """Parts of a K step that are decoded one after the other."""
        return self.plan.cta_tile_k // self.decoded_k

    @property
    def warps(self) -> int:
        """Warps that share the columns of a tile: 16 columns each."""
        return self.plan.cta_tile_n // 16

    @property
    def swizzle_bytes(self) -> int:
        """The swizzle of B's tiles in shared memory."""
        return self.plan.resources.b[0].swizzle_bytes

    @property
    def constants(self) -> Iterator[Constant]:
        """The extents of a K step of words, and of the part that is decoded at a time."""
        k, scale_k, decoded_k = self.plan.cta_tile_k, self.scale_k, self.decoded_k
        if self.bits == 4:
            yield Constant(Place.STEP, "PACKED_TILE_K", k // 2, f"bytes of {k} elements of 4 bits")
        yield Constant(Place.STEP, "DECODED_K", decoded_k, "of K that are decoded at a time")
        yield Constant(Place.STEP, "SCALE_K", scale_k, "of K whose scales are one element of b_scale")
        if k > scale_k:
            meaning = "elements of b_scale of a column in a step"
            yield Constant(Place.STEP, "STEP_BLOCKS", k // scale_k, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that decode a part of a K step, and the function of the host that packs."""
        if self.by_table:
            yield Function(Section.READ, "wgmma/decode/decode_by_table")
            yield Function(Section.MEMORY, "wrapper/pack_for_table")
            return
        yield Function(Section.READ, "wgmma/decode/layouts")
        yield Function(Section.READ, "wgmma/decode/beside_words")
        if self.scales_in_word > 1:
            yield Function(Section.READ, "wgmma/decode/scale_of_block")
        if self.has_zeros:
            yield Function(Section.READ, "wgmma/decode/scale_and_zero")
        elif self.is_integer:
            yield Function(Section.READ, "wgmma/decode/times_zero_point")
        yield Function(Section.READ, "wgmma/decode/decode_b")
        yield Function(Section.MEMORY, "wrapper/pack_weight" if self.bits == 4 else "wrapper/pack_bytes")

    @property
    def issue_mmas(self) -> str:
        """The template that decodes a part of a K step while the MMAs of the one before it run."""
        return "wgmma/issue_mmas/decoded"

    @property
    def imported(self) -> tuple[tuple[str, str], ...]:
        """The fence between the reads of threads and the next load of TMA."""
        return (("hopper", "fence_async_shared"),)

    @property
    def sentences(self) -> Iterator[str]:
        """A sentence about the decoding."""
        count = "eight" if self.bits == 4 else "four"
        yield (
            f"Threads read words of {count} elements of B from shared memory, "
            f"decode {self.decoded_k} of K at a time to {self.plan.problem.b.multiplied.name}, and multiply "
            "with B from registers."
        )

    @property
    def facts(self) -> Iterator[str]:
        """The multiple that K is of, and the format of the scales by which `pack_weight` is called."""
        yield f'"k_multiple": {self.plan.access.k_multiple},  # `pack_weight` permutes whole blocks'
        scales = python_literal(self.scale_format)
        yield f'"packs_weight": {scales},  # b and b_scale are from `pack_weight`, of this format'

    @property
    def docs(self) -> dict[str, str]:
        """The words about the weight and its scales."""
        b = self.plan.problem.b
        groups = "groups, " if self.plan.problem.groups else ""
        columns = "2N" if self.plan.problem.gated else "N"
        shape = f"[{groups}{columns}, ceil(K / {b.scale_k})], {b.scale_dtype.torch}"
        of_columns = self._scale.format.factor == "column_scale"
        factors = {"column_scale": "; from `pack_weight`"} if of_columns else {}
        relative = ": powers of two relative to column_scale" if of_columns else ""
        return factors | {
            "b": f", from `pack_weight`; {columns} and K are multiples of {WEIGHT_BLOCK}",
            "b_scale": f"{shape}, {columns} contiguous, from `pack_weight`{relative}",
        }


SIDES: SidesByMma = {"wgmma": (DecodedWeights,)}
