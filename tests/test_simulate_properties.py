"""The simulator's arithmetic of integers, floats and layouts, on random inputs and against other sources."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations, product
from math import prod
from typing import Any, cast

import numpy
import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import hopper as kernels_
from torch import Tensor
from triton._C.libtriton import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    gluon_ir as gluon_ir_,  # pyright: ignore[reportUnknownVariableType]
)
from triton._C.libtriton import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    ir as ir_,  # pyright: ignore[reportUnknownVariableType]
)
from triton.experimental.gluon.language.nvidia.blackwell import (  # pyright: ignore[reportMissingTypeStubs]
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
)

from gluonsim import run
from gluonsim.clocks import Clock, Component, Tick, join, learn, reached
from gluonsim.findings import UNKNOWN
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import TENSOR_MEMORY, Encoding, MemDescType, TensorType
from gluonsim.tensor_memory import ACCUMULATOR, COLUMN_BYTES, PITCH_BYTES, SCALES, tensor_memory_index

pytestmark = pytest.mark.simulator

kernels, gl = cast(Any, kernels_), cast(Any, gl_)
LANES = 32
"""Numbers of an example: one run of the compiler for all of them."""


# --- integers


def pairs(bits: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Pairs of which the quotient exists and fits."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    number = st.one_of(st.integers(low, high), st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high]))
    pair = st.tuples(number, number).filter(lambda pair: pair[1] != 0 and pair != (low, -1))
    return st.lists(pair, min_size=LANES, max_size=LANES)


def expected_integers(a: Tensor, b: Tensor, shift: Tensor) -> Tensor:
    """In numbers of 64 bits, whose low bits are those of the narrower operation."""
    quotient = torch.div(a, b, rounding_mode="trunc")
    rows = [a + b, a - b, a * b, quotient, a - b * quotient, a & b, a | b, a ^ b, a >> shift, a << shift]
    return torch.stack([*rows, torch.minimum(a, b), torch.maximum(a, b), torch.where(a < b, a, b)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_tensors_of_integers_wrap_and_division_truncates(dtype: torch.dtype, data: st.DataObject) -> None:
    bits = dtype.itemsize * 8
    a, b = torch.tensor(data.draw(pairs(bits))).T.contiguous()
    out = torch.zeros(13, LANES, dtype=dtype)
    run(kernels.tensor_integers_kernel, (1,), (a.to(dtype), b.to(dtype), out, False), schedules=("lazy",))
    assert out.equal(expected_integers(a, b, b & (bits - 1)).to(dtype))


@settings(max_examples=10, deadline=None)
@given(pairs(32))
def test_unsigned_integers_divide_shift_and_compare_as_such(drawn: list[tuple[int, int]]) -> None:
    a, b = torch.tensor(drawn).T.contiguous()
    out = torch.zeros(13, LANES, dtype=torch.int32)
    arguments = (a.to(torch.int32), b.to(torch.int32), out, True)
    run(kernels.tensor_integers_kernel, (1,), arguments, schedules=("lazy",))
    a, b = a & 0xFFFF_FFFF, b & 0xFFFF_FFFF
    assert out.equal(expected_integers(a, b, b & 31).to(torch.int32))


# --- floats


def programs_full(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """A few numbers, often enough for one program of the kernel that converts them."""
    return st.lists(numbers, min_size=LANES, max_size=LANES).map(lambda drawn: drawn * (256 // LANES))


FLOATS = programs_full(st.floats(width=32))


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in another type, by a kernel."""
    out = torch.zeros(len(x), dtype=dtype)
    run(kernels.convert_kernel, (len(x) // 256,), (x, out), schedules=("lazy",))
    return out


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether all numbers are the same; one NaN is like another."""
    nan = expected.isnan()
    return found.isnan().equal(nan) and found[~nan].equal(expected[~nan])


@settings(max_examples=10, deadline=None)
@given(FLOATS)
def test_random_fp32_narrow_to_fp16_and_bf16_and_widen_again(numbers: list[float]) -> None:
    x = torch.tensor(numbers)
    with numpy.errstate(over="ignore"):  # what is too large becomes infinite
        half = torch.from_numpy(x.numpy().astype(numpy.float16))  # pyright: ignore[reportUnknownMemberType]
    assert same(converted(x, torch.float16), half)
    assert same(converted(half, torch.float32), half.float())
    # To the nearest, to even: add half of what is cut off, and a bit less where the last bit is 0.
    bits = x.view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    kept = bits + 0x7FFF + (bits >> 16 & 1) >> 16 & 0xFFFF
    brain = torch.where(x.isnan(), torch.tensor(math.nan), (kept << 16).to(torch.int32).view(torch.float32))
    assert same(converted(x, torch.bfloat16).float(), brain)
    assert same(converted(x, torch.bfloat16), x.bfloat16())
    assert same(converted(x.bfloat16(), torch.float32), x.bfloat16().float())


@settings(max_examples=10, deadline=None)
@given(FLOATS)
def test_random_fp32_become_integers_by_truncation_and_saturation(numbers: list[float]) -> None:
    low, high = -(2**31), 2**31 - 1
    expected = [0 if math.isnan(x) else int(max(low, min(high, x))) for x in numbers]
    assert converted(torch.tensor(numbers), torch.int32).equal(torch.tensor(expected, dtype=torch.int32))


@settings(max_examples=10, deadline=None)
@given(programs_full(st.integers(-(2**31), 2**31 - 1)))
def test_random_integers_become_the_nearest_fp32(numbers: list[int]) -> None:
    found = converted(torch.tensor(numbers, dtype=torch.int32), torch.float32)
    assert found.equal(torch.from_numpy(numpy.array(numbers).astype(numpy.float32)))  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16])
def test_every_number_of_16_bits_narrows_to_the_nearest_of_8(wide: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(wide)
    found = converted(x, dtype)
    # By search among all finite numbers, which the order of their codes is: a tie goes to the even code.
    finite = torch.arange(0x80, dtype=torch.uint8).view(dtype).double()
    finite = finite[finite.isfinite()]
    magnitude = x.double().abs().nan_to_num(0.0, posinf=math.inf).clamp(max=finite[-1].item())
    above = torch.searchsorted(finite, magnitude).clamp(min=1)
    to_below, to_above = magnitude - finite[above - 1], finite[above] - magnitude
    up = (to_above < to_below) | (to_above == to_below) & (above % 2 == 0)
    nearest = torch.where(up, finite[above], finite[above - 1]).copysign(x.double())
    assert same(found.double(), torch.where(x.isnan(), torch.tensor(math.nan).double(), nearest))


# --- layouts

POWERS = (1, 2, 4, 8)


@cache
def builder() -> Any:
    """The compiler's own arithmetic of layouts."""
    context = cast(Any, ir_).context()
    cast(Any, ir_).load_dialects(context)
    return context, cast(Any, gluon_ir_).GluonOpBuilder(context)


def linear(layout: Any, shape: list[int]) -> Any:
    """Return what the compiler makes of a layout: where each bit of a position leads."""
    _, build = builder()
    return build.to_linear_layout(layout._to_ir(build), shape)


def at(bases: list[list[int]], number: int, rank: int) -> tuple[int, ...]:
    """Return where the bits of a number lead together."""
    chosen = [basis for bit, basis in enumerate(bases) if number >> bit & 1]
    return tuple(sum(basis[dim] for basis in chosen) for dim in range(rank))


@st.composite
def cga_layouts(draw: st.DrawFn) -> list[list[int]]:
    """Bases of up to 16 CTAs in two dimensions, in any order; some bits may make no difference."""
    splits = [draw(st.sampled_from(POWERS[:3])) for _ in range(2)]
    bases = [[1 << bit, 0] for bit in range(splits[0].bit_length() - 1)]
    bases += [[0, 1 << bit] for bit in range(splits[1].bit_length() - 1)]
    bases += [[0, 0]] * draw(st.integers(0, 4 - len(bases)))
    return draw(st.permutations(bases))


@settings(max_examples=100, deadline=None)
@given(cga_layouts(), st.sampled_from([(128, 64), (256, 128), (64, 512)]))
def test_a_cta_holds_the_part_that_the_compiler_says(bases: list[list[int]], tile: tuple[int, int]) -> None:
    shape = [extent * 2 ** sum(1 for basis in bases if basis[dim]) for dim, extent in enumerate(tile)]
    blocked = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=bases)
    mma = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16], cga_layout=bases)
    fields = {"CGALayout": bases}
    encodings = {"blocked": Encoding("ttg.blocked", fields), "mma": Encoding("ttg.nvidia_mma", fields)}
    cases = [(blocked, encodings["blocked"], shape), (mma, encodings["mma"], shape)]
    for dim in (0, 1):
        encoding = Encoding("ttg.slice", {"dim": dim, "parent": encodings["blocked"]})
        cases.append((gl.SliceLayout(dim, blocked), encoding, [shape[1 - dim]]))
    encoding = Encoding("ttg.dot_op", {"opIdx": 0, "parent": encodings["mma"]})
    cases.append((gl.DotOperandLayout(0, mma, 2), encoding, shape))
    for layout, encoding, extents in cases:
        blocks = linear(layout, extents).block_bases
        found = TensorType(tuple(extents), "f32", encoding)
        as_linear = TensorType(tuple(extents), "f32", Encoding("ttg.linear", {"block": blocks}))
        for cta in range(1 << len(bases)):
            assert found.origin(cta) == at(blocks, cta, len(extents))
            assert as_linear.origin(cta) == found.origin(cta)
        assert found.local_shape == as_linear.local_shape
        assert found.shared_bits == sum(1 << bit for bit, basis in enumerate(blocks) if not any(basis))


def tensor_memory_positions(layout: Any, shape: list[int], unit_bytes: int) -> dict[tuple[int, ...], int]:
    """Return the first byte of each element by the compiler's own account."""
    bases = linear(layout, shape)
    found: dict[tuple[int, ...], int] = {}
    for lane, column in product(range(1 << len(bases.rows)), range(1 << len(bases.cols))):
        element = tuple(map(sum, zip(at(bases.rows, lane, 2), at(bases.cols, column, 2), strict=True)))
        found.setdefault(element, lane * PITCH_BYTES + column * unit_bytes)
    return found


def indexed(kind: str, fields: dict[str, Any], shape: list[int], element: str) -> Tensor:
    """Return the simulator's index of an allocation at the beginning of tensor memory."""
    type_ = MemDescType(tuple(shape), element, Encoding(kind, fields), TENSOR_MEMORY)
    place = {"tensor_memory_row_offset": 0, "tensor_memory_col_offset": 0}
    return tensor_memory_index(Operation("ttng.tmem_alloc", ("%0",), (), place, (), (), (type_,), UNKNOWN))


@pytest.mark.parametrize("columns", [32, 64, 256])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(("element", "bits", "stride"), [("f32", 32, 1), ("f16", 16, 2), ("f16", 16, 1)])
def test_an_accumulator_lies_where_the_compiler_puts_it(
    element: str, bits: int, stride: int, rows: int, columns: int
) -> None:
    for paired in (False, True):
        bases = [[1, 0]] if paired else []
        shape = [rows * (2 if paired else 1), columns]
        layout = TensorMemoryLayout(
            (rows, columns), col_stride=stride, cga_layout=cast(Any, bases), two_ctas=paired
        )
        fields = {
            "blockM": rows,
            "blockN": columns,
            "colStride": stride,
            "twoCTAs": paired,
            "CGALayout": bases,
        }
        found = indexed(ACCUMULATOR, fields, shape, element)
        expected = tensor_memory_positions(layout, shape, bits // 8)
        for (row, column), position in expected.items():
            assert found[row, column] == position


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (128, 8), (256, 4), (256, 16)])
def test_scales_lie_where_the_compiler_puts_them(rows: int, columns: int) -> None:
    found = indexed(SCALES, {}, [rows, columns], "i8")
    expected = tensor_memory_positions(TensorMemoryScalesLayout(), [rows, columns], 1)
    assert len(expected) == rows * columns
    for (row, column), position in expected.items():
        assert found[row, column] == position
    assert found.max() % PITCH_BYTES < rows * columns // 32 * COLUMN_BYTES


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(*[st.sampled_from(POWERS[1:])] * 3),
    st.sampled_from(list(permutations(range(3)))),
    st.integers(0, 1),
    st.data(),
)
def test_views_of_shared_memory_are_those_of_torch(
    shape: tuple[int, int, int], order: tuple[int, int, int], slot: int, data: st.DataObject
) -> None:
    x = torch.arange(2 * prod(shape), dtype=torch.int32).reshape(2, *shape)
    permuted = x[slot].permute(order)
    extent = data.draw(st.sampled_from([power for power in POWERS if power <= permuted.shape[0]]))
    start = extent * data.draw(st.integers(0, permuted.shape[0] // extent - 1))
    expected = permuted.narrow(0, start, extent)
    out = torch.zeros(expected.shape, dtype=torch.int32)
    arguments = (x, out, shape, order, slot, start, extent)
    result = run(kernels.views_kernel, (1,), arguments, schedules=("lazy",))
    assert result.findings == ()
    assert out.equal(expected)


# --- clocks

COMPONENTS = [Component(program, position) for program in (0, 7) for position in (0, 1, 40)]
NUMBER = st.one_of(st.integers(1, 3), st.sampled_from([2**31 - 2, 2**31 - 1]))
EVENT = st.tuples(st.sampled_from(COMPONENTS), NUMBER)


def clock_of(events: list[tuple[Component, int]]) -> Clock:
    clock: Clock = {}
    for component, number in events:
        learn(clock, component, number)
    return clock


@given(st.lists(EVENT, max_size=12), st.lists(EVENT, max_size=12))
def test_a_joined_clock_covers_what_either_covers_and_no_more(
    mine: list[tuple[Component, int]], others: list[tuple[Component, int]]
) -> None:
    clock, other = clock_of(mine), clock_of(others)
    before = dict(other)
    join(clock, other)
    for component in COMPONENTS:
        latest = max((number for where, number in mine + others if where is component), default=0)
        assert reached(clock, component) == latest
        assert Tick(component, latest).known(clock)
        assert not Tick(component, latest + 1).known(clock)
    assert other == before
