"""Small kernels that copy a tensor by TMA, as an author writes them: right, and with a fault."""

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def load(in_desc, row, buffer, ready, phase):
    mbarrier.expect(ready, in_desc.block_type.nbytes)
    tma.async_load(in_desc, [row, 0], ready, buffer)
    mbarrier.wait(ready, phase)


@gluon.jit
def copy_kernel(in_desc, out_desc, tiles, awaited: gl.constexpr, num_warps: gl.constexpr):
    buffer = gl.allocate_shared_memory(in_desc.dtype, in_desc.block_type.shape, in_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    for tile in range(tiles):
        row = tile * in_desc.block_type.shape[0]
        load(in_desc, row, buffer, ready, tile & 1)
        tma.async_store(out_desc, [row, 0], buffer)
        if awaited:
            tma.store_wait(0)
    tma.store_wait(0)
    mbarrier.invalidate(ready)


def descriptors(source, target, rows=16):
    box = [rows, source.shape[1]]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.float32)
    return [TensorDescriptor.from_tensor(tensor, box, layout) for tensor in (source, target)]


@gluon.jit
def scaled_kernel(in_ptr, out_ptr, count, factor, block: gl.constexpr, seed: gl.constexpr = None):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * block + gl.arange(0, block, layout=layout)
    values = gl.load(in_ptr + offsets, mask=offsets < count)
    gl.store(out_ptr + offsets, values * factor, mask=offsets < count)


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def not_gluon(in_ptr, out_ptr, count, block: tl.constexpr):
    """Add up twice each block of a vector: a kernel of Triton's own language."""
    program = tl.program_id(0)
    offsets = program * block + tl.arange(0, block)
    x = tl.load(in_ptr + offsets, mask=offsets < count, other=0.0)
    tl.store(out_ptr + program, tl.sum(_twice(x) + tl.zeros([block], tl.float32), 0))


@gluon.jit
def fill(out_ptr, block: gl.constexpr):
    """Store ones."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.store(out_ptr + gl.arange(0, block, layout), gl.full([block], 1.0, gl.float32, layout))


@gluon.jit
def too_much(out_ptr):
    """Take 400 KiB of shared memory."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    page = gl.allocate_shared_memory(gl.float32, [1024, 64], shared)
    rest = gl.allocate_shared_memory(gl.float32, [512, 64], shared)
    page.store(gl.zeros([1024, 64], gl.float32, layout))
    rest.store(gl.zeros([512, 64], gl.float32, layout))
    sums = gl.sum(page.load(layout), 0)
    gl.store(out_ptr + gl.arange(0, 64, gl.SliceLayout(0, layout)), sums + gl.sum(rest.load(layout), 0))
