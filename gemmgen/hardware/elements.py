"""The element types, and the formats of scales of blocks of them: one row of a table for each.

Sources, cited by their tag:

* [ieee] IEEE 754-2019; bf16 and tf32: NVIDIA A100 Tensor Core GPU Architecture whitepaper.
* [fp8] OCP 8-bit Floating Point Specification (OFP8) 1.0.
* [ocp] OCP Microscaling Formats (MX) Specification 1.0.
* [ptx] PTX ISA 9.0, sections ``wgmma.mma_async``, ``tcgen05.mma`` and its block scaling.
* [gluon] Triton 3.9.0, measured by lowering.
* [cublas] cuBLAS 12.9, "1D and 2D Block Scaling for FP8": VEC128_32F and BLK128x128_32F.
* [dsv3] DeepSeek-V3 Technical Report (arXiv 2412.19437), 3.3.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar, overload

from gemmgen.hardware.gpus import GPUS, WGMMA, Row, Table
from gemmgen.hardware.triton_releases import TRITON

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Value = TypeVar("Value", covariant=True)


class Names(Sequence[str]):
    """Names that are read from a table each time they are asked for."""

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self._read = read

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self._read())[index]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._read()))  # as it comes of `__getitem__`, the table is read for each name

    def __len__(self) -> int:
        return len(tuple(self._read()))

    def __repr__(self) -> str:
        return repr(tuple(self._read()))

    def _check(self, name: str) -> str:
        """Return a name of the table; raise ValueError for another one."""
        if name not in self:
            raise ValueError(f"must be one of {', '.join(self)}, not {json.dumps(name)}")
        return name

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # only where a document is read: to import it takes a while

        return core_schema.no_info_after_validator_function(self._check, handler(source))


class Column(Mapping[str, Value], Generic[Value]):
    """One column of a table by the rows' names, without the rows that leave it empty (None)."""

    def __init__(self, table: Mapping[str, Row], value: Callable[[Row], Value | None]) -> None:
        self._table, self._value = table, value

    def __getitem__(self, name: str) -> Value:
        if (found := self._value(self._table[name])) is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, row in self._table.items() if self._value(row) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class DType:
    """An element type: its bits, its names in libraries, and its use by the tensor cores."""

    name: str
    """As a spec has it."""
    bits: int
    kind: Literal["float", "integer", "scale"]
    """A scale is a power of two."""
    gluon: str
    torch: str
    triton: str
    """As a kernel's signature spells it."""
    ptx: str
    """As the name of an instruction spells it."""
    mlir: str
    """As TTGIR spells it."""
    largest: float
    """The largest finite number."""
    significand: int | None = None
    """Significant bits of a float, the hidden one among them."""
    coded: bool = False
    """True if its elements lie in memory as codes that torch cannot compute with or TMA has no type for."""
    in_memory: str = ""
    """The type that its elements have in global memory, where TMA rounds them on the way to shared memory."""

    wgmma_accumulators: tuple[str, ...] = ()
    """[ptx] What wgmma sums the products of two of this type in, the usual one first."""
    wgmma_n_max: int = WGMMA.n_max
    """Columns of the widest wgmma of this type."""
    tcgen05_kind: str | None = None
    """[ptx] The kind of ``tcgen05.mma`` that multiplies it without scales."""
    converted_from: tuple[str, ...] = ()
    """Accumulators that are converted to a D of this type. 8-bit floats hold no sum of integers worth
    keeping."""
    addend: bool = False
    """True if C, or a bias beside a D of this type, can have it."""

    tolerance: float | None = None
    """Largest relative error of a D of this type, without accumulation: see ``problem.tolerance``."""
    tolerated_k: int | None = None
    """K up to which sums in fp32 of products of this type are within that: see ``problem.tolerance``."""
    also: tuple[str, ...] = ()
    """Other names of it, or names of types that it can stand for."""

    @property
    def bytes(self) -> int:
        """Bytes of one element.

        Raises ValueError for a type whose elements share a byte.
        """
        if self.bits % 8:
            raise ValueError(f"an element of {self.name} has {self.bits} bits, and no bytes of its own")
        return self.bits // 8

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element in memory; of the byte that several share, if they do."""
        return max(1, self.bits // 8)

    @property
    def elements_per_byte(self) -> int:
        """Elements that share a byte, in global memory."""
        return max(1, 8 // self.bits)

    @property
    def integer(self) -> bool:
        """True if its products and sums are exact integers."""
        return self.kind == "integer"

    @property
    def fp8(self) -> bool:
        """True if it is an 8-bit float, which the tensor cores multiply in any mix."""
        return self.kind == "float" and self.bits == 8

    @property
    def half_ulp(self) -> float | None:
        """The most that rounding to it costs a normal number, relative to it; 0 for integers."""
        if self.integer:
            return 0.0
        return None if self.significand is None else 2.0**-self.significand

    @property
    def operand(self) -> bool:
        """True if A or B can have it, on any architecture."""
        multiplied = self.wgmma_accumulators or self.tcgen05_kind
        return bool(multiplied) or any(self.name in scale.elements for scale in SCALE_FORMATS.values())


SINGLE = ("fp32", "float32", "f32", "float", "single")
EIGHT_BITS = ("fp8", "float8", "f8")
ANY_SUM = ("fp32", "fp16", "int32")
DTYPES: Table[DType] = Table(
    "element type",
    {
        dtype.name: dtype
        for dtype in (
            DType(
                "bf16", 16, "float", "gl.bfloat16", "torch.bfloat16", "bf16", ptx="bf16", mlir="bf16",
                largest=(2 - 2**-7) * 2.0**127, significand=8,
                wgmma_accumulators=("fp32",), tcgen05_kind="f16", converted_from=ANY_SUM, addend=True,
                tolerance=4e-3, tolerated_k=8192,
                also=("bfloat16", "bfloat"),
            ),
            DType(
                "fp16", 16, "float", "gl.float16", "torch.float16", "fp16", ptx="f16", mlir="f16",
                largest=65_504.0, significand=11,
                wgmma_accumulators=("fp32", "fp16"), tcgen05_kind="f16", converted_from=ANY_SUM, addend=True,
                tolerance=1e-3, tolerated_k=8192,
                also=("float16", "f16", "half"),
            ),
            DType(
                "tf32", 32, "float", "gl.float32", "torch.float32", "fp32", ptx="tf32", mlir="f32",
                largest=(2 - 2**-10) * 2.0**127, significand=11, in_memory="fp32",
                wgmma_accumulators=("fp32",), tcgen05_kind="tf32",
                tolerated_k=2048,
                also=("tfloat32", *SINGLE),
            ),
            DType(
                "fp32", 32, "float", "gl.float32", "torch.float32", "fp32", ptx="f32", mlir="f32",
                largest=(2 - 2**-23) * 2.0**127, significand=24,
                converted_from=ANY_SUM, addend=True,
                tolerance=1e-5,
                also=("tf32", "tfloat32", *SINGLE),
            ),
            DType(
                "e4m3", 8, "float", "gl.float8e4nv", "torch.float8_e4m3fn", "fp8e4nv", ptx="e4m3",
                mlir="f8E4M3FN", largest=448.0, significand=4,
                wgmma_accumulators=("fp32", "fp16"), tcgen05_kind="f8f6f4", converted_from=("fp32", "fp16"),
                tolerance=6.5e-2,
                also=(
                    *EIGHT_BITS, "fp8_e4m3", "fp8e4m3", "float8_e4m3", "float8_e4m3fn", "f8e4m3fn", "e4m3fn",
                ),
            ),
            DType(
                "e5m2", 8, "float", "gl.float8e5", "torch.float8_e5m2", "fp8e5", ptx="e5m2",
                mlir="f8E5M2", largest=57_344.0, significand=3,
                wgmma_accumulators=("fp32", "fp16"), tcgen05_kind="f8f6f4", converted_from=("fp32", "fp16"),
                tolerance=0.13,
                also=(*EIGHT_BITS, "fp8_e5m2", "fp8e5m2", "float8_e5m2", "f8e5m2"),
            ),
            DType(
                "int8", 8, "integer", "gl.int8", "torch.int8", "i8", ptx="s8", mlir="i8",
                largest=127.0,
                wgmma_accumulators=("int32",), wgmma_n_max=TRITON.wgmma_n_max_int8,
                also=("i8", "s8", "char"),
            ),
            DType(
                "int32", 32, "integer", "gl.int32", "torch.int32", "i32", ptx="s32", mlir="i32",
                largest=2.0**31 - 1,
                converted_from=("int32",),
                also=("i32", "s32", "int"),
            ),
            # Two in a byte, the one of lower index in its lower half.
            DType(
                "e2m1", 4, "float", "gl.uint8", "torch.uint8", "u8", ptx="e2m1", mlir="i8",
                largest=6.0, significand=2, coded=True,
                also=("fp4", "float4", "f4", "float4_e2m1fn_x2", "float4_e2m1", "e2m1fn", "nvfp4", "mxfp4"),
            ),
            # Two in a byte, as e2m1; the code is the number plus 8. No instruction multiplies it: threads
            # decode it to a float of 16 bits.
            DType(
                "int4", 4, "integer", "gl.uint8", "torch.uint8", "u8", ptx="s4", mlir="i8",
                largest=7.0, coded=True,
                also=("i4", "s4", "uint4", "u4"),
            ),
            # Powers of two; Triton has no such type and moves bytes.
            DType(
                "ue8m0", 8, "scale", "gl.uint8", "torch.float8_e8m0fnu", "u8", ptx="ue8m0", mlir="i8",
                largest=2.0**127, coded=True,
                also=("e8m0", "float8_e8m0fnu", "f8e8m0", "e8m0fnu"),
            ),
        )
    },
)  # fmt: skip

INPUTS = Names(lambda: (name for name, dtype in DTYPES.items() if dtype.operand))
"""Types of A and B."""
OUTPUTS = Names(lambda: (name for name, dtype in DTYPES.items() if dtype.converted_from))
"""Types of D."""
ADDENDS = Names(lambda: (name for name, dtype in DTYPES.items() if dtype.addend))
"""Types of C, and of a bias beside a D of the same type."""
ACCUMULATORS = Names(
    lambda: dict.fromkeys(name for dtype in DTYPES.values() for name in dtype.wgmma_accumulators)
)
"""Types that products are summed in."""
FP8 = Names(lambda: (name for name, dtype in DTYPES.items() if dtype.fp8))
"""The 8-bit floats, which the tensor cores multiply in any mix."""
WGMMA_ACCUMULATORS: Column[tuple[str, ...]] = Column(DTYPES, lambda dtype: dtype.wgmma_accumulators or None)
"""[ptx] What wgmma sums the products of a type in."""

DTypeName = Annotated[str, Names(lambda: DTYPES)]
"""The name of an element type."""


def outputs_of(accumulator: str) -> tuple[str, ...]:
    """Return the types that an accumulator is converted to, one that keeps integers before others."""
    converted = [dtype for dtype in DTYPES.values() if accumulator in dtype.converted_from]
    exact = DTYPES[accumulator].kind
    return tuple(dtype.name for dtype in sorted(converted, key=lambda dtype: dtype.kind != exact))


SCALE_ROWS = 128
"""[ptx] Rows whose scales lie together in the packed layout: 4 groups of 32 lanes."""
SCALE_COLUMNS = 4
"""[ptx] Scales of a row that lie together: one word of tensor memory."""
SCALE_LANES = 32
"""[ptx] Lanes of tensor memory among which the rows of a block are divided: a lane has rows as far apart."""
PADDED_K = 128
"""[ptx] Elements that one box of padded fp4 has along K, and that K must be a multiple of."""


WEIGHT_BLOCK = 64
"""Columns of B, and elements of K, of a block of weights that threads decode: ``pack_weight`` permutes it."""
WEIGHT_TURN = 8
"""[ptx] Columns between two columns of such a block that one thread has in its registers for wgmma."""


Applied = Literal["mma", "sums", "decode"]
"""Where a kernel multiplies by the scales of an operand: in the MMA, for which scales are packed; in the
threads that have the sums of a block of K; or in the threads that decode a weight, which is B, for the MMA.
"""
APPLIED: Mapping[str, tuple[Applied, ...]] = {"wgmma": ("sums", "decode"), "tcgen05": ("mma",)}
"""Where kernels can do so by their matrix instruction: wgmma takes no scales, and the sums of a block of K of
tcgen05 are in no registers. Its kernels do not decode weights.
"""


@dataclass(frozen=True)
class ScaleFormat:
    """One scale for each block of an operand: ``rows`` rows of A, or columns of B, by ``vector`` of K."""

    name: str
    elements: tuple[str, ...]
    """Element types, by their names in a spec."""
    vector: int
    dtype: str
    """Element type of the scales."""
    applied: tuple[Applied, ...]
    """Where kernels multiply by the scales; an architecture has one of these places."""
    rows: int = 1
    operands: tuple[str, ...] = ("a", "b")
    """The operands that can have it."""
    per_word: int = 1
    """Scales of blocks one after the other in an element of the scales that kernels read which decode."""
    zeros: bool = False
    """True if a block of integers has a zero point of its own, in a word with its scale."""
    decoded_to: str = ""
    """The type that threads decode elements to, which is that of the other operand."""
    factor: Literal["", "tensor_scale", "column_scale"] = ""
    """The operand of an epilogue by which decoded elements are multiplied too.

    It is one number of the whole matrix, or one of each column.
    """
    results: tuple[str, ...] = ()
    """Element types of a D whose scales a kernel computes, with a scale for ``vector`` of its columns."""
    also: tuple[str, ...] = ()
    """Other names for it that a user may write."""

    def applied_by(self, mma: str, operand: str) -> Applied | None:
        """Return where kernels of an instruction multiply by the scales of A or of B; None if nowhere.

        Only B is decoded.
        """
        for each in APPLIED[mma]:
            if each in self.applied and (each != "decode" or operand == "b"):
                return each
        return None

    def generations(self, operand: str) -> tuple[str, ...]:
        """Return the maker's names for the GPUs whose kernels apply its scales to A or to B."""
        architectures = (gpu.architecture for gpu in GPUS.values())
        applying = (each.generation for each in architectures if self.applied_by(each.mma, operand))
        return tuple(dict.fromkeys(applying))


def _formats_of_weights(dtype: str) -> Iterator[ScaleFormat]:
    """Yield the formats of weights whose scales have a type, to which threads decode."""
    of_weights = partial(ScaleFormat, dtype=dtype, applied=("decode",), operands=("b",), decoded_to=dtype)
    for vector, per_word in ((128, 1), (64, 1), (32, 2)):
        elements = ("int4", "int8", "e4m3") if vector == 128 else ("int4",)
        also = (f"g{vector}", f"group{vector}", f"int4_g{vector}")
        yield of_weights(f"{dtype}_1x{vector}", elements, vector=vector, per_word=per_word, also=also)
    for vector in (128, 64):
        also = ("awq", "asymmetric", "int4_zero")
        yield of_weights(f"{dtype}_zero_1x{vector}", ("int4",), vector=vector, zeros=True, also=also)


SCALE_FORMATS: Table[ScaleFormat] = Table(
    "format of scales",
    {
        scale.name: scale
        for scale in (
            # [ocp]
            ScaleFormat(
                "mxfp8", elements=("e4m3", "e5m2"), vector=32, dtype="ue8m0", applied=("mma",),
                also=("mx", "mxfp"),
            ),
            # Beside 16-bit elements, threads decode e2m1.
            ScaleFormat(
                "mxfp4", elements=("e2m1",), vector=32, dtype="ue8m0", applied=("mma", "decode"), per_word=4,
                decoded_to="bf16", also=("mx", "mxfp"),
            ),
            # The same weights beside e4m3: a scale is one of twelve powers of two of its column.
            ScaleFormat(
                "mxfp4_e4m3", elements=("e2m1",), vector=32, dtype="ue8m0", applied=("decode",), per_word=4,
                operands=("b",), decoded_to="e4m3", factor="column_scale", also=("w4a8", "mxfp4_fp8"),
            ),
            # [ptx] block16 of mxf4nvf4
            ScaleFormat(
                "nvfp4", elements=("e2m1",), vector=16, dtype="e4m3", applied=("mma", "decode"), per_word=4,
                decoded_to="bf16", factor="tensor_scale", also=("nv",),
            ),
            # [dsv3] [cublas] Of activations, and of both operands of a weight's gradient.
            ScaleFormat(
                "fp32_1x128", elements=("e4m3", "e5m2"), vector=128, dtype="fp32", applied=("sums",),
                results=("e4m3",),
                also=("1x128", "blockwise", "blockwise_1x128", "BlockWise1x128", "vec128", "groupwise"),
            ),
            # [dsv3] [cublas] Of weights.
            ScaleFormat(
                "fp32_128x128", elements=("e4m3", "e5m2"), vector=128, dtype="fp32", applied=("sums",),
                rows=128, operands=("b",),
                also=("128x128", "blockwise", "blockwise_128x128", "BlockWise128x128"),
            ),
            # The same blocks with scales that are powers of two, as later checkpoints have them.
            ScaleFormat(
                "ue8m0_1x128", elements=("e4m3", "e5m2"), vector=128, dtype="ue8m0", applied=("sums",),
                results=("e4m3",),
                also=("1x128", "e8m0_1x128", "ue8m0"),
            ),
            ScaleFormat(
                "ue8m0_128x128", elements=("e4m3", "e5m2"), vector=128, dtype="ue8m0", applied=("sums",),
                rows=128, operands=("b",),
                also=("128x128", "e8m0_128x128", "ue8m0"),
            ),
            # [ocp] The blocks of mxfp8, whose sums threads scale: the tensor cores of Hopper take no scales.
            ScaleFormat(
                "ue8m0_1x32", elements=("e4m3", "e5m2"), vector=32, dtype="ue8m0", applied=("sums",),
                also=("1x32", "e8m0_1x32", "mx", "mxfp"),
            ),
            # Weights of checkpoints whose groups along K have 128, 64 or 32 elements, and of eight bits.
            *_formats_of_weights("bf16"),
            *_formats_of_weights("fp16"),
        )
    },
)  # fmt: skip
ScaleFormatName = Annotated[str, Names(lambda: SCALE_FORMATS)]
"""The name of a format of scales."""
LEAST_SCALED = 2.0**-100
"""The least magnitude that a block of D is scaled by: zeros have a scale above 0, whose inverse is finite."""
MOST_SCALED = 2.0**127
"""The greatest magnitude that a block of D is scaled by: a block with an infinity has a finite scale."""
SCALE_DTYPES = Names(lambda: dict.fromkeys(scale.dtype for scale in SCALE_FORMATS.values()))
"""Types of scales of blocks."""
MMA_KINDS = {
    ("mxfp8", "mxfp8"): "mxf8f6f4.block_scale.block32",
    ("mxfp8", "mxfp4"): "mxf8f6f4.block_scale.block32",
    ("mxfp4", "mxfp8"): "mxf8f6f4.block_scale.block32",
    ("mxfp4", "mxfp4"): "mxf4.block_scale.block32",
    ("nvfp4", "nvfp4"): "mxf4nvf4.block_scale.block16",
}
"""[ptx] The kind of ``tcgen05.mma`` that multiplies an A of one format with a B of another."""
