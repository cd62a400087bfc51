"""The simulator computes what the device computes of each part of the language."""

from __future__ import annotations

import functools
import importlib
import linecache
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as Tiled,
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptorIm2Col as Im2Col,
)

from gemmgen.errors import GemmgenError
from gluonsim import Kind, Result, simulate
from gluonsim.findings import UNKNOWN
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import DTYPES, Encoding, MemDescType
from gluonsim.places import shared_memory_index
from gluonsim.ptx.instructions import bits, instruction
from gluonsim.ptx.text import Machine

pytestmark = pytest.mark.simulator

gl, TensorDescriptor, TensorDescriptorIm2Col = cast(Any, gl_), cast(Any, Tiled), cast(Any, Im2Col)
NVMMASharedLayout: Any = gl.NVMMASharedLayout
language: Any = importlib.import_module("kernels.language")


def ran(kernel: Any, *args: Any, grid: Any = 1, target: str = "h100", **keywords: Any) -> Result:
    """Return the result of a launch; the schedules are few, since nothing here is asynchronous."""
    return simulate(kernel, target, schedules=("lazy", "random"))[grid](*args, **keywords)


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-8, 1e-3, 1e10, -2.5e-12])
def test_constants_have_exponents(eps: float) -> None:
    x, d = torch.randn(128), torch.zeros(128)
    assert not ran(language.rms_norm_kernel, x, d, eps=eps).findings
    torch.testing.assert_close(d, x * torch.rsqrt((x * x).mean() + eps), rtol=1e-6, atol=0)


def test_reductions_have_several_operands_and_any_function() -> None:
    x = torch.randint(-9, 9, (64, 64)).float()
    index, parity = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    mean, variance = torch.zeros(64), torch.zeros(64)
    assert not ran(language.reductions_kernel, x, index, mean, variance, parity).findings
    assert index.equal(x.argmax(1).int())
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(variance, x.var(1, correction=0))
    wanted = functools.reduce(torch.bitwise_xor, x.view(torch.int32).unbind(1))
    assert parity.equal(wanted)


def test_scans_have_several_operands_in_their_order() -> None:
    a, b, d, whole = torch.rand(128), torch.randn(128), torch.zeros(128), torch.zeros(1)
    assert not ran(language.recurrence_kernel, a, b, d, whole).findings
    state, wanted = torch.zeros(()), list[torch.Tensor]()
    for factor, addend in zip(a, b, strict=True):
        state = factor * state + addend
        wanted.append(state)
    torch.testing.assert_close(d, torch.stack(wanted))
    torch.testing.assert_close(whole[0], state)


def test_tensors_are_gathered_counted_clamped_and_multiplied_to_the_upper_half() -> None:
    x, index = torch.randn(128), torch.randint(0, 128, (128,), dtype=torch.int32)
    x[5] = torch.nan
    gathered, clamped = torch.zeros(128), torch.zeros(128)
    counts, high = torch.zeros(64, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    assert not ran(language.elementwise_kernel, x, index, gathered, counts, clamped, high).findings
    torch.testing.assert_close(gathered, x[index.long()], rtol=0, atol=0, equal_nan=True)
    assert counts.equal(torch.bincount(index[index < 64], minlength=64).int())
    assert clamped.equal(x.nan_to_num(-0.5).clamp(-0.5, 0.5))  # without propagation, the lower bound for NaN
    products = [((int(i) - 7) % 2**32 * 0xDEADBEEF) >> 32 for i in index]
    assert [int(value) % 2**32 for value in high] == products


def test_an_index_beyond_its_tensor_is_refused_with_its_line() -> None:
    with pytest.raises(GemmgenError, match=r"indices of 1 to 128 into 128 elements") as error:
        ran(language.gather_beyond_kernel, torch.randn(128), torch.zeros(128))
    assert "gl.gather" in linecache.getline(language.__file__, error.value.diagnostics[0].line or 0)


def test_a_gather_takes_elements_that_its_own_cta_holds() -> None:
    x, index, d = torch.randn(64, 64), torch.randint(0, 64, (64, 64), dtype=torch.int32), torch.zeros(64, 64)
    assert not ran(language.divided_gather_kernel, x, index, d, language.SPLIT, num_ctas=2).findings
    assert d.equal(x.gather(1, index.long()))
    for source in (language.ALIKE, language.ACROSS):
        with pytest.raises(GemmgenError, match="elements of other CTAs is not known") as error:
            ran(language.divided_gather_kernel, x, index, d, source, num_ctas=2)
        assert "gl.gather" in linecache.getline(language.__file__, error.value.diagnostics[0].line or 0)


def test_four_bits_become_floats_the_low_ones_first() -> None:
    x, d = torch.randint(0, 256, (64, 64), dtype=torch.uint8), torch.zeros(64, 128, dtype=torch.bfloat16)
    assert not ran(language.fp4_kernel, x, d).findings
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    wanted = torch.stack([values[(x & 15).long()], values[(x >> 4).long()]], -1).reshape(64, 128)
    assert d.equal(wanted.bfloat16())


def test_packed_arithmetic_rounds_once() -> None:
    x, y, z = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 64)
    x[0, 0] = torch.nan
    # 2 * (1 + 2**-12) ** 2 is a tie of fp32, and float64 drops the addend.
    x[1, 1], y[1, 1], z[1, 1] = 0, 2 + 2**-11, 2**-59
    sums, halves = torch.zeros(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    assert not ran(language.packed_kernel, x, y, z, sums, halves, target="b200").findings
    wanted = (x + y).double() * (y * 0.5).double() + (z - x).double()
    wanted[1, 1] = 2 * (1 + 2**-11 + 2**-23)
    torch.testing.assert_close(sums, wanted.float(), rtol=0, atol=0, equal_nan=True)
    assert halves.equal(torch.fmax(torch.fmin(x.half(), y.half()), z.half()))


@pytest.mark.parametrize(("dtype", "mantissa_bits"), [(torch.float32, 23), (torch.bfloat16, 7)])
def test_a_fused_multiply_add_rounds_once(dtype: torch.dtype, mantissa_bits: int) -> None:
    """The product is a tie, which float64 does not leave when it adds a number as small as this one."""
    root = 2.0 ** -((mantissa_bits + 1) // 2)
    x, y, d = (
        torch.full((128,), 1 + root, dtype=dtype),
        torch.zeros(128, dtype=dtype),
        torch.zeros(128, dtype=dtype),
    )
    y[0], y[1] = 2.0**-60, -(2.0**-60)
    assert not ran(language.fused_kernel, x, y, d).findings
    below = 1 + 2 * root  # the square of the root is half of the last bit
    assert d[:2].double().equal(torch.tensor([below + 2.0**-mantissa_bits, below], dtype=torch.float64))


def test_a_fused_multiply_add_of_fp64_is_refused_with_its_line() -> None:
    x, y, d = (torch.zeros(128, dtype=torch.float64) for _ in range(3))
    with pytest.raises(GemmgenError, match="multiply-add of fp64 is not known") as error:
        ran(language.fused_kernel, x, y, d)
    assert "gl.fma" in linecache.getline(language.__file__, error.value.diagnostics[0].line or 0)


def test_functions_of_single_elements_may_branch() -> None:
    x, y, d, largest = torch.randn(64, 64), torch.randn(64, 64), torch.zeros(64, 64), torch.zeros(64)
    assert not ran(language.branches_kernel, x, y, d, largest, 1.5).findings
    assert d.equal(torch.where(x > y, x * 1.5, torch.where(y > 1, y, y - 3.0)))
    assert largest.equal(x.amax(1))


def test_functions_that_are_not_inlined_have_memory_of_their_own() -> None:
    x, d = torch.randn(64, 64), torch.zeros(64, 64)
    assert not ran(language.calls_kernel, x, d, 5, 2).findings
    torch.testing.assert_close(d, ((x * 2 + 5) * 2 + 6) * 2 + 7 + x)


def test_arguments_come_in_tuples() -> None:
    x, y, d = torch.randn(64, 64), torch.randn(64, 64), torch.zeros(64, 64)
    assert not ran(language.tuples_kernel, (x, (y, 3.0)), d).findings
    torch.testing.assert_close(d, x + y * 3)


def test_elements_of_shared_memory_are_gathered_scattered_and_counted() -> None:
    x = torch.randn(64, 64)
    x[3, 5] = torch.nan
    index = torch.stack([torch.randperm(64) for _ in range(64)]).int()
    counts, d = torch.zeros(64, 64, dtype=torch.int32), torch.zeros(64, 64)
    assert not ran(language.elements_kernel, x, index, counts, d).findings
    at = index.long()
    wanted = torch.zeros(64, 64).scatter(1, at, x.gather(0, at))
    torch.testing.assert_close(d, wanted, rtol=0, atol=0, equal_nan=True)
    assert counts[:, 0].equal((index < 32).sum(1).int())
    assert not counts[:, 1:].any()


def test_partitions_may_scatter_to_different_elements_at_a_time() -> None:
    x, d = torch.randn(2, 64), torch.zeros(2, 64)
    assert not ran(language.scatter_in_roles_kernel, x, d, 1).findings
    assert d.equal(x)


@pytest.mark.parametrize("schedule", ["lazy", "lifo"])
@pytest.mark.parametrize("both", [True, False])
def test_a_reader_awaits_each_partition_that_counts(both: bool, schedule: str) -> None:
    """In either order of the two atomics."""
    d = torch.zeros(1, 64, dtype=torch.int32)
    result = simulate(language.count_in_roles_kernel, "h100", schedules=(schedule,))[1](d, both)
    if both:
        assert result.findings == ()
        assert d.eq(2).all()
    else:
        assert [(each.kind, each.name) for each in result.findings] == [(Kind.READ_AFTER_WRITE, "counts")]


def test_partitions_that_scatter_to_one_element_race() -> None:
    result = ran(language.scatter_in_roles_kernel, torch.randn(2, 64), torch.zeros(2, 64), 0)
    assert (result.findings[0].kind, result.findings[0].name) == (Kind.WRITE_AFTER_WRITE, "buffer")
    assert {finding.kind for finding in result.findings[1:]} == {Kind.UNINITIALISED_READ}


def test_two_numbers_for_one_element_are_a_race_of_threads() -> None:
    result = ran(language.scatter_twice_kernel, torch.randn(64, 64), torch.zeros(64, 64))
    assert [finding.kind for finding in result.findings] == [Kind.WRITE_AFTER_WRITE]
    assert "several threads" in result.findings[0].text


@pytest.mark.parametrize("count", [127, 128, 129])
def test_each_thread_arrives_when_its_copies_are_complete(count: int) -> None:
    x, d = torch.randn(64, 64), torch.zeros(64, 64)
    kinds = [finding.kind for finding in ran(language.arrivals_of_threads_kernel, x, d, count).findings]
    assert kinds[:1] == {127: [Kind.ARRIVAL_OVERFLOW], 128: [], 129: [Kind.DEADLOCK]}[count]
    assert count != 128 or d.equal(x)


def test_an_asynchronous_store_reaches_the_memory_of_other_ctas() -> None:
    x, d = torch.randn(64, 64), torch.zeros(64, 64)
    assert not ran(language.async_store_kernel, x, d, True, num_ctas=2).findings
    assert d.equal(x)


def test_an_asynchronous_store_that_is_not_awaited_is_a_race() -> None:
    result = ran(language.async_store_kernel, torch.randn(64, 64), torch.zeros(64, 64), False, num_ctas=2)
    assert {finding.name for finding in result.findings if finding.kind is not Kind.WORK_IN_FLIGHT} == {
        "buffer"
    }
    assert Kind.READ_AFTER_WRITE in {finding.kind for finding in result.findings}


def test_tensor_memory_holds_elements_of_another_type_when_it_is_reinterpreted() -> None:
    x, found, low = torch.randn(128, 64), torch.zeros(128, 64), torch.zeros(128, 64, dtype=torch.bfloat16)
    assert not ran(language.tensor_memory_kernel, x, found, low, target="b200").findings
    wanted = x.clone()
    wanted[:, 32:] = (x * 2).bfloat16().view(torch.float32)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert low.view(torch.int16).equal(x[:, :32].contiguous().view(torch.int16))


def test_padding_leaves_gaps_between_elements() -> None:
    """See the example in Triton's PaddedSharedLayout."""
    bases = [[0, 1], [0, 2], [2, 0], [4, 0], [1, 0]]
    encoding = Encoding("ttg.padded_shared", {"paddings": [[8, 1]], "offset": bases, "block": []})
    type_ = MemDescType((8, 4), "f32", encoding)
    attributes = {"allocation.offset": 16}
    index = shared_memory_index(
        Operation("ttg.local_alloc", ("%0",), (), attributes, (), (), (type_,), UNKNOWN)
    )
    rows = [(int(first) - 16) // 4 for first in index[:, 0]]
    assert rows == [0, 18, 4, 22, 9, 27, 13, 31]


@pytest.mark.parametrize("stride", [1, 2])
def test_im2col_loads_are_the_operand_of_a_convolution(stride: int) -> None:
    images = torch.randn(2, 9, 7, 64).half()
    layout = NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    descriptor = TensorDescriptorIm2Col.from_tensor(
        images,
        [64, 64],
        layout,
        element_strides=[1, stride, stride, 1],
        pixel_box_lower_corner=[-1, -1],
        pixel_box_upper_corner=[-1, -1],
    )
    d = torch.zeros(9, 64, 64, dtype=torch.float16)
    assert not ran(language.im2col_kernel, descriptor, d, 9, 0, -1, -1, taps=3).findings
    columns = torch.nn.functional.unfold(images.permute(0, 3, 1, 2).float(), 3, padding=1, stride=stride)
    wanted = columns.reshape(2, 64, 9, -1).permute(2, 0, 3, 1).reshape(9, -1, 64)  # taps, pixels, channels
    count = min(64, wanted.shape[1])
    assert d[:, :count].equal(wanted[:, :count].half())
    assert not d[:, count:].any()  # images that are not there


@pytest.mark.parametrize(("row", "kept"), [(0, 32), (32, 8), (-8, 32), (64, 0)])
def test_ragged_descriptors_stay_within_a_group_of_rows(row: int, kept: int) -> None:
    """See Triton's tools/ragged_tma.py: addresses wrap around."""
    x, d = torch.randn(100, 64).half(), torch.zeros(100, 64).half()
    layout = NVMMASharedLayout.get_default_for([1, 1, 32, 64], gl.float16)

    def ragged(tensor: torch.Tensor) -> Any:
        shape = [0x7FFF0000, 0x7FFF0000, 0x40000000, 64]
        return TensorDescriptor(tensor, shape, [2**34 - 64, 64, 64, 1], [1, 1, 32, 64], layout)

    assert not ran(language.ragged_kernel, ragged(x), ragged(d), 20, 40, row).findings
    wanted = torch.zeros(100, 64).half()
    first = 20 + row  # nothing bounds a row below: the hardware reads the rows of the group before
    wanted[first : first + kept] = x[first : first + kept]
    assert d.equal(wanted)


def test_inline_assembly_computes_by_a_table_of_instructions() -> None:
    x, y = torch.randn(512), torch.randn(512)
    words = torch.randint(-(2**31), 2**31, (512,)).int()
    exp, eight = torch.zeros(512), torch.zeros(512, dtype=torch.int8)
    pairs, codes, chosen = (torch.zeros(512, dtype=torch.int32) for _ in range(3))
    assert not ran(language.assembly_kernel, x, y, words, exp, pairs, codes, eight, chosen).findings
    torch.testing.assert_close(exp, torch.exp2(x))
    assert pairs.view(torch.bfloat16).reshape(512, 2).equal(torch.stack([x, y], 1).bfloat16())
    nibbles = torch.stack([words >> 4 & 15, words >> 20 & 15], 1)
    assert codes.view(torch.bfloat16).reshape(512, 2).equal((nibbles - 8).bfloat16())
    wanted = (x * 200).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.int8)
    assert eight.equal(wanted)
    bytes_of_x, bytes_of_y = (t.view(torch.uint8).reshape(512, 4) for t in (x, y))
    permuted = torch.cat([bytes_of_y[:, 2:], bytes_of_x[:, :2]], 1).contiguous().view(torch.int32)[:, 0]
    assert chosen.equal(torch.where(x > y, 7, permuted))


@pytest.mark.parametrize(
    ("name", "operands", "result"),
    [
        ("prmt.b32", (0x03020100, 0x87868584, 0xC4F7), 0xFF84FF87),
        ("lop3.b32", (0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0xE8), 0xE8E8E8E8),
        ("bfe.s32", (0x00000F00, 8, 4), 0xFFFFFFFF),
        ("bfe.u32", (0x00000F00, 8, 4), 0xF),
        ("bfe.s32", (0x80000000, 24, 40), 0xFFFFFF80),
        ("bfi.b32", (0x5, 0xFFFF0000, 4, 8), 0xFFFF0050),
        ("shf.l.wrap.b32", (0x80000000, 0x1, 4), 0x18),
        ("shf.r.wrap.b32", (0x80000000, 0x1, 4), 0x18000000),
        ("shf.r.wrap.b32", (-1, 0x1, 4), 0x1FFFFFFF),
        ("shr.s32", (0x80000000, 31), 0xFFFFFFFF),
        ("shr.u32", (0x80000000, 40), 0),
        ("mul.hi.u32", (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFE),
        ("mad.lo.s32", (0xFFFFFFFF, 3, 5), 2),
        ("cvt.rzi.s32.f32", (0xC0600000,), 0xFFFFFFFD),
        ("cvt.rzi.f32.f32", (0xC0600000,), 0xC0400000),
        ("cvt.sat.f32.f32", (0x40000000,), 0x3F800000),
        ("cvt.rn.satfinite.f16x2.f32", (0x7F800000, 0xC9000000), 0x7BFFFBFF),
        ("cvt.rn.relu.f16.f32", (0xC0400000,), 0),
        ("cvt.rn.f32.s32", (0xFFFFFFFD,), 0xC0400000),
        ("cvt.s32.s8", (0x80,), 0xFFFFFF80),
        ("cvt.rn.f16x2.e4m3x2", (0x38B8,), 0x3C00BC00),
        ("cvt.rn.f16x2.e2m1x2", (0xF2,), 0xC6003C00),
        ("fma.rn.bf16x2", (0x3F804000, 0x40403F80, 0x0000BF80), 0x40403F80),
        ("fma.rn.f32", (0x3F800800, 0x3F800800, 0x21800000), 0x3F801001),
        ("fma.rn.f32", (0x3F800800, 0x3F800800, 0xA1800000), 0x3F801000),
        ("fma.rn.f32", (0xBF800800, 0x3F800800, 0xA1800000), 0xBF801001),
        ("fma.rn.bf16", (0x3F88, 0x3F88, 0x2180), 0x3F91),
        ("add.ftz.f16", (0x0001, 0x0001), 0),
        ("add.ftz.f32", (0x00000001, 0x00000001), 0),
        ("add.f32", (0x00000001, 0x00000001), 2),
        ("max.f16x2", (0x7E003C00, 0x40004000), 0x40004000),
        ("tanh.approx.f32", (0x7F800000,), 0x3F800000),
    ],
)
def test_an_instruction_gives_the_bits_of_the_manual(
    name: str, operands: tuple[int, ...], result: int
) -> None:
    found = instruction(name)([torch.tensor([operand]) for operand in operands])
    assert hex(int(found)) == hex(result)


def test_sums_of_bf16_are_rounded_once() -> None:
    """The exact sum is just above a tie of bf16, and fp32 rounds it to the tie."""
    one, half = 0x3F80, 0x3B80  # 1 and 2**-8
    found = instruction("fma.rn.bf16")([torch.tensor([one]), torch.tensor([one]), torch.tensor([half])])
    assert int(found) == 0x3F80  # a tie, to even
    exact = torch.tensor([1.0 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert int(bits(exact, "bf16")) == 0x3F81


@pytest.mark.parametrize(("type_", "nan"), [("f32", 0x7FC00000), ("f16", 0x7E00)])
def test_no_comparison_of_nan_is_true(type_: str, nan: int) -> None:
    for name, of_numbers in {"eq": 0, "ne": 1, "lt": 1, "le": 1, "gt": 0, "ge": 0}.items():
        registers = {"$1": torch.tensor([0, 0]), "$2": torch.tensor([1, nan])}
        text = f"setp.{name}.{type_} p, $1, $2; selp.b32 $0, 1, 0, p;"
        Machine(text).run(registers, torch.zeros(2, dtype=torch.int64))
        assert registers["$0"].equal(torch.tensor([of_numbers, 0])), name


@pytest.mark.parametrize(
    "name",
    [
        "min.u64",
        "shr.u64",
        "cvt.rn.f32.u64",
        "cvt.rn.f32.s64",
        "fma.rn.f64",
        "cvt.rzi.s32.f64",
        "add.sat.s32",
    ],
)
def test_what_int64_and_float64_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(GemmgenError, match=f"PTX instruction {name} is not known"):
        instruction(name)


def test_another_instruction_is_refused_by_its_name_and_line() -> None:
    with pytest.raises(GemmgenError, match=r"vabsdiff4\.u32 is not known") as error:
        ran(language.unknown_assembly_kernel, torch.zeros(128, dtype=torch.int32))
    assert error.value.diagnostics[0].line is not None


@pytest.mark.parametrize("fused", [True, False])
def test_batches_of_matrices_are_multiplied(fused: bool) -> None:
    x, d = torch.randn(2, 64, 64), torch.zeros(2, 64, 64)
    x = x if fused else x.half()
    assert not ran(language.batched_dot_kernel, x, d, fused).findings
    torch.testing.assert_close(d, x.float() @ x.float(), rtol=1e-5, atol=1e-5)


def test_a_type_that_is_not_known_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DTYPES, "f8E5M2")
    with pytest.raises(GemmgenError, match="f8E5M2 is not known") as error:
        ran(language.strange_type_kernel, torch.zeros(128, dtype=torch.float16))
    assert "gl.float8e5" in linecache.getline(language.__file__, error.value.diagnostics[0].line or 0)


def test_an_error_of_torch_is_told_as_a_use_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr("gluonsim.operations.reductions.within", broken)
    x, index = torch.randn(128), torch.zeros(128, dtype=torch.int32)
    d = [torch.zeros(128), torch.zeros(64, dtype=torch.int32), torch.zeros(128), index.clone()]
    with pytest.raises(GemmgenError, match=r"histogram is not known.*sizes differ") as error:
        ran(language.elementwise_kernel, x, index, *d)
    assert error.value.diagnostics[0].line is not None
