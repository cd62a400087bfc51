"""Small Gluon kernels with inline assembly: one text for each thread, over the registers of any layout."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
QUADS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([2, 4], [4, 8], [1, 4], [1, 0]))


@gluon.constexpr_function
def _biased(outputs, inputs):
    (found,), (x, bias) = outputs, inputs
    return "\n".join(f"add.f32 {to}, {value}, {bias[0]};" for to, value in zip(found, x, strict=True))


@gluon.constexpr_function
def _reversed(outputs, inputs):
    (found,), (x,) = outputs, inputs
    lines = (
        f"{{ .reg .b32 t; mov.b32 t, {value}; mov.b32 {to}, t; }}"
        for to, value in zip(found, x[::-1], strict=True)
    )
    return "\n".join(lines)


@gluon.constexpr_function
def _halved(outputs, inputs):
    (low, high), (x,) = outputs, inputs
    return "\n".join(f"mov.b64 {{{a}, {b}}}, {value};" for a, b, value in zip(low, high, x, strict=True))


@gluon.jit
def bias_kernel(x_ptr, d_ptr, bias):
    """D = X + bias of 1,024 numbers, four or eight in each thread."""
    at = gl.arange(0, 1024, QUADS)
    x = gl.load(x_ptr + at)
    gl.store(d_ptr + at, gl.inline_asm(_biased, ("=&f", "f", "f"), [x, bias], x.type, is_pure=True))


@gluon.jit
def halves_kernel(x_ptr, low_ptr, high_ptr):
    """Divide 256 numbers of 64 bits into two of 32."""
    at = gl.arange(0, 256, LINE)
    x = gl.load(x_ptr + at)
    half: gl.constexpr = gl.distributed_type(gl.int32, [256], LINE)
    low, high = gl.inline_asm(_halved, ("=&r", "=&r", "l"), [x], (half, half), is_pure=True)
    gl.store(low_ptr + at, low)
    gl.store(high_ptr + at, high)


@gluon.jit
def layout_kernel(x_ptr, d_ptr, linear_ptr, layout: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr):
    """Reverse the registers of each thread, in a layout, and in what Triton says that the layout is."""
    row = gl.arange(0, rows, gl.SliceLayout(1, TILE))
    column = gl.arange(0, columns, gl.SliceLayout(0, TILE))
    at = row[:, None] * columns + column[None, :]
    x = gl.convert_layout(gl.load(x_ptr + at), layout)
    d = gl.inline_asm(_reversed, ("=&f", "f"), [x], x.type, is_pure=True)
    gl.store(d_ptr + at, gl.convert_layout(d, TILE))
    same: gl.constexpr = gl.to_linear_layout(layout, [rows, columns])
    y = gl.convert_layout(x, same)
    d = gl.inline_asm(_reversed, ("=&f", "f"), [y], y.type, is_pure=True)
    gl.store(linear_ptr + at, gl.convert_layout(d, TILE))


@gluon.jit
def slice_kernel(x_ptr, d_ptr, linear_ptr, layout: gl.constexpr):
    """Reverse the registers of each thread, of 64 numbers along one dimension of a layout."""
    at = gl.arange(0, 64, layout)
    x = gl.load(x_ptr + at)
    gl.store(d_ptr + at, gl.inline_asm(_reversed, ("=&f", "f"), [x], x.type, is_pure=True))
    same: gl.constexpr = gl.to_linear_layout(layout, [64])
    y = gl.convert_layout(x, same)
    d = gl.inline_asm(_reversed, ("=&f", "f"), [y], y.type, is_pure=True)
    gl.store(linear_ptr + at, gl.convert_layout(d, layout))


COPIES = gl.constexpr(gl.DistributedLinearLayout([[1], [0]], [[0], [0], [0], [0], [0]], [[0], [0]], [], [2]))


@gluon.jit
def copies_kernel(x_ptr, d_ptr, text: gl.constexpr):
    """Execute a text on 2 numbers, of which each thread has two copies of each."""
    at = gl.arange(0, 2, COPIES)
    x = gl.load(x_ptr + at)
    gl.store(d_ptr + at, gl.inline_asm(text, ("=&f", "f"), [x], x.type, is_pure=True))


@gluon.jit
def numbers_kernel(d_ptr, x, text: gl.constexpr, constraints: gl.constexpr):
    """Execute a text on one number."""
    gl.store(d_ptr, gl.inline_asm(text, constraints, [x], gl.int32, is_pure=True))


@gluon.jit
def effect_kernel(x_ptr, text: gl.constexpr):
    """Execute a text for its effect."""
    gl.inline_asm(text)
    gl.store(x_ptr, 1.0)


@gluon.jit
def address_kernel(x_ptr, text: gl.constexpr):
    """Execute a text on the address of a buffer."""
    buffer = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    buffer.store(gl.load(x_ptr + gl.arange(0, 128, LINE)))
    found = gl.inline_asm(text, ("=r", "r"), [buffer], gl.int32)
    gl.store(x_ptr, found.to(gl.float32))


@gluon.jit
def packed_kernel(x_ptr, d_ptr, layout: gl.constexpr):
    """Execute an instruction on 512 halves, in pairs, in a layout that repeats its tile."""
    at = gl.arange(0, 512, layout)
    x = gl.load(x_ptr + at)
    d = gl.inline_asm_elementwise(
        "add.u32 $0, $0, 0x00010001;", "=r,0", [x], dtype=gl.int16, is_pure=True, pack=2
    )
    gl.store(d_ptr + at, d)


@gluon.jit
def pointers_kernel(x_ptr, text: gl.constexpr):
    """Execute a text on the addresses of 128 numbers."""
    at = gl.arange(0, 128, LINE)
    x = gl.inline_asm_elementwise(text, "=f,l", [x_ptr + at], dtype=gl.float32, is_pure=False, pack=1)
    gl.store(x_ptr + at, x)


@gluon.constexpr_function
def _doubled(outputs, inputs):
    return "\n".join(f"add.f32 {to}, {x}, {x};" for to, x in zip(outputs[0], inputs[0], strict=True))


@gluon.jit
def _double(x_ptr, d_ptr, layout: gl.constexpr):
    at = gl.arange(0, 128, layout)
    x = gl.load(x_ptr + at)
    gl.store(d_ptr + at, gl.inline_asm(_doubled, ("=&f", "f"), [x], x.type, is_pure=True))


@gluon.jit
def _double_by_two_warps(x_ptr, d_ptr):
    _double(x_ptr, d_ptr, gl.BlockedLayout([1], [32], [2], [0]))


@gluon.jit
def _double_by_four_warps(x_ptr, d_ptr):
    _double(x_ptr + 128, d_ptr + 128, LINE)


@gluon.jit
def partitions_kernel(x_ptr, d_ptr):
    """D = 2 * X, by partitions of two and of four warps."""
    gl.warp_specialize(
        [(_double_by_four_warps, (x_ptr, d_ptr)), (_double_by_two_warps, (x_ptr, d_ptr))], [2], [24]
    )
