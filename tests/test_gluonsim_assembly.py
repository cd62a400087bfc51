"""Inline assembly runs once in each thread, on the registers that its layout gives the thread."""

from __future__ import annotations

import importlib
import linecache
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]

from gemmgen.errors import GemmgenError
from gluonsim import Kind, Result, simulate

pytestmark = pytest.mark.simulator

gl = cast(Any, gl_)
kernels: Any = importlib.import_module("kernels.assembly")

MMA_V2 = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
WGMMA = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16])
TILE = gl.BlockedLayout([2, 4], [4, 8], [1, 4], [1, 0])
COLUMNS = gl.BlockedLayout([4, 2], [16, 2], [2, 2], [0, 1])


def ran(kernel: Any, *args: Any, **keywords: Any) -> Result:
    """Return the result of a launch of one program."""
    return simulate(kernel, "h100", schedules=("lazy",))[1](*args, **keywords)


def refused(kernel: Any, *args: Any) -> str:
    """Return why a launch is refused: the message has the line of the inline assembly."""
    with pytest.raises(GemmgenError) as error:
        ran(kernel, *args)
    diagnostic = error.value.diagnostics[0]
    assert "gl.inline_asm" in linecache.getline(kernels.__file__, diagnostic.line or 0)
    return diagnostic.message


def test_a_text_has_a_register_for_each_element_of_a_thread() -> None:
    x, d = torch.randn(1024), torch.zeros(1024)
    assert not ran(kernels.bias_kernel, x, d, 2.5).findings
    assert d.equal(x + 2.5)


def test_a_text_has_several_results_of_other_widths() -> None:
    x = torch.randint(-(2**62), 2**62, (256,))
    low, high = torch.zeros(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    assert not ran(kernels.halves_kernel, x, low, high).findings
    assert low.equal(x.view(torch.int32)[::2])
    assert high.equal(x.view(torch.int32)[1::2])


def test_registers_go_along_the_order_of_a_layout_and_then_repeat_its_tile() -> None:
    x, d, linear = torch.randn(16, 256), torch.zeros(16, 256), torch.zeros(16, 256)
    assert not ran(kernels.layout_kernel, x, d, linear, TILE, 16, 256).findings
    # Two rows and four columns of each thread, of each of 2 x 2 tiles.
    registers = x.view(2, 4, 2, 2, 32, 4)
    assert d.equal(registers.flip(0, 2, 3, 5).reshape(16, 256))


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (TILE, (16, 256)),
        (TILE, (2, 16)),
        (TILE, (16, 2)),
        (COLUMNS, (256, 16)),
        (COLUMNS, (16, 64)),
        (MMA_V2, (64, 64)),
        (MMA_V2, (8, 16)),
        (WGMMA, (128, 64)),
        (WGMMA, (64, 16)),
        (gl.DotOperandLayout(0, MMA_V2, 2), (64, 64)),
        (gl.DotOperandLayout(1, MMA_V2, 2), (64, 64)),
        (gl.DotOperandLayout(0, WGMMA, 1), (64, 64)),
    ],
)
def test_registers_are_where_triton_says_that_they_are(layout: Any, shape: tuple[int, int]) -> None:
    x, d, linear = torch.randn(shape), torch.zeros(shape), torch.zeros(shape)
    assert not ran(kernels.layout_kernel, x, d, linear, layout, *shape).findings
    assert not d.equal(x)
    assert d.equal(linear)


@pytest.mark.parametrize("layout", [gl.SliceLayout(0, TILE), gl.SliceLayout(1, COLUMNS)])
def test_a_slice_has_one_register_for_several_of_its_parent(layout: Any) -> None:
    x, d, linear = torch.randn(64), torch.zeros(64), torch.zeros(64)
    assert not ran(kernels.slice_kernel, x, d, linear, layout).findings
    assert not d.equal(x)
    assert d.equal(linear)


def test_copies_of_an_element_must_agree() -> None:
    x, d = torch.randn(2), torch.zeros(2)
    doubled = "\n".join(f"add.f32 ${i}, ${i + 4}, ${i + 4};" for i in range(4))
    assert not ran(kernels.copies_kernel, x, d, doubled).findings
    assert d.equal(2 * x)
    findings = ran(kernels.copies_kernel, x, d, doubled.replace("add.f32 $3", "sub.f32 $3")).findings
    assert [finding.kind for finding in findings] == [Kind.UNDEFINED_VALUE]
    assert "different numbers in registers" in findings[0].text


def test_a_register_that_no_instruction_writes_is_undefined() -> None:
    text = "mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6;"
    findings = ran(kernels.copies_kernel, torch.randn(2), torch.zeros(2), text).findings
    assert [finding.kind for finding in findings] == [Kind.UNDEFINED_VALUE]
    assert "does not write $3" in findings[0].text


@pytest.mark.parametrize(
    ("text", "constraints", "wanted"),
    [
        ("add.s32 $0, $0, 1;", "=r,0", 8),
        ("add.s32 $0, $1, 1;", "=r,0,~{memory}", 8),
        ("{ .reg .b32 t; mov.b32 t, 2; { .reg .b32 t; mov.b32 t, 9; } add.s32 $0, $1, t; }", "=r,r", 9),
        ("{ .reg .pred p; setp.gt.s32 p, $1, 9; mov.b32 $0, 1; @p mov.b32 $0, 2; }", "=r,r", 1),
        ("{ .reg .b64 t; mov.b64 t, 0xFFFFFFFFFFFFFFFF; cvt.s32.s64 $0, t; }", "=r,r", -1),
    ],
)
def test_registers_may_be_tied_and_names_belong_to_scopes(text: str, constraints: str, wanted: int) -> None:
    d = torch.zeros(1, dtype=torch.int32)
    assert not ran(kernels.numbers_kernel, d, 7, text, constraints).findings
    assert int(d) == wanted


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("bar.sync 0;", "bar.sync"),
        ("griddepcontrol.wait;", "griddepcontrol.wait"),
        ("setmaxnreg.inc.sync.aligned.u32 240;", "setmaxnreg.inc.sync.aligned.u32"),
        ("st.global.f32 [a], 0f00000000;", "st.global.f32"),
        ("mov.b128 a, b;", "mov.b128"),
        ("@p bra done;", "bra"),
        ("setp.lt.and.f32 p, a, b, q;", "setp.lt.and.f32"),
    ],
)
def test_other_instructions_are_refused_by_name_and_line(text: str, named: str) -> None:
    assert refused(kernels.effect_kernel, torch.zeros(1), text).startswith(f"the PTX instruction {named} ")


def test_memory_is_refused_with_its_line() -> None:
    x = torch.zeros(128)
    assert "instruction ld.shared.b32 " in refused(kernels.address_kernel, x, "ld.shared.b32 $0, [$1];")
    assert "an address in inline assembly" in refused(kernels.address_kernel, x, "add.u32 $0, $1, 16;")
    text = "ld.global.cg.f32 $0, [$1];"
    assert "instruction ld.global.cg.f32 " in refused(kernels.pointers_kernel, x, text)
    assert "an address in inline assembly" in refused(kernels.pointers_kernel, x, "cvt.rn.f32.s32 $0, 1;")


def test_each_partition_has_threads_of_its_own() -> None:
    x, d = torch.randn(256), torch.zeros(256)
    assert not ran(kernels.partitions_kernel, x, d).findings
    assert d.equal(2 * x)


def test_what_a_text_uses_must_be_there() -> None:
    d = torch.zeros(1, dtype=torch.int32)
    assert "operand %smid " in refused(kernels.numbers_kernel, d, 7, "mov.u32 $0, %smid;", "=r,r")
    assert "operand p " in refused(kernels.numbers_kernel, d, 7, "@p mov.u32 $0, $1;", "=r,r")
    assert "constraints for 1 and 2" in refused(kernels.numbers_kernel, d, 7, "mov.u32 $0, $1;", "=r,r,r")


@pytest.mark.parametrize("size", [4, 2])
def test_packed_elements_may_be_of_any_tile_and_tied(size: int) -> None:
    x, d = torch.arange(512, dtype=torch.int16), torch.zeros(512, dtype=torch.int16)
    layout = gl.BlockedLayout([size], [32], [4 // (size // 2)], [0])
    options = {"num_warps": 4 // (size // 2)}
    assert not ran(kernels.packed_kernel, x, d, layout, **options).findings
    assert d.equal(x + 1)


@pytest.mark.parametrize(
    "text",
    [
        "mul.rn.bf16x2 $0, $1, 0x80088008;",
        "fma.rn.f16x2 $0, $1, $1, 0;",
        "max.f16x2 $0, $1, 5;",
        "{ .reg .b16 h; cvt.u16.u32 h, $1; add.f16 h, h, 0x3c00; mov.b32 $0, {h, h}; }",
    ],
)
def test_arithmetic_of_16_bit_floats_takes_no_constants(text: str) -> None:
    d = torch.zeros(1, dtype=torch.int32)
    assert "takes registers alone, found " in refused(kernels.numbers_kernel, d, 7, text, "=r,r")


def test_arithmetic_of_16_bit_floats_takes_constants_in_registers() -> None:
    d = torch.zeros(1, dtype=torch.int32)
    text = "{ .reg .b32 one; mov.b32 one, 0x3f803f80; mul.rn.bf16x2 $0, $1, one; }"
    assert not ran(kernels.numbers_kernel, d, 0x40004000, text, "=r,r").findings
    assert d.item() == 0x40004000
