"""CTAs that read each other's registers and shared memory, as Triton 3.9 lowers it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.launch import lines_of
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gemmgen.errors import GemmgenError
from gemmgen.processes.forking import forked
from gluonsim import Kind, Result, Severity, run

pytestmark = pytest.mark.simulator

gl: Any = importlib.import_module("triton.experimental.gluon.language")
TensorDescriptor: Any = TensorDescriptor_
kernels: Any = importlib.import_module("kernels.clusters")
FILE = Path(kernels.__file__)

DIVISIONS = {"rows": [[1, 0]], "columns": [[0, 1]], "whole": [[0, 0]]}
"""Of a tensor among two CTAs: the bases of its CGA layout."""
PAIRS = [(before, after) for before in DIVISIONS for after in DIVISIONS]
X = torch.arange(4096.0).reshape(64, 64)


def registers(division: str) -> Any:
    return gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0], cga_layout=DIVISIONS[division])


def shared(division: str) -> Any:
    return gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=DIVISIONS[division])


def ptx(kernel: Any, *constants: object) -> str:
    """Return what Triton makes, for two CTAs, of a kernel that takes two pointers to fp32 and constants."""
    triton: Any = importlib.import_module("triton")
    backend: Any = importlib.import_module("triton.backends.compiler")
    gluon: Any = importlib.import_module("triton.experimental.gluon")
    types = ["*fp32", "*fp32", *["constexpr"] * len(constants)]
    signature = dict(zip(kernel.arg_names, types, strict=True))
    source = gluon.GluonASTSource(kernel, signature, {(2 + i,): value for i, value in enumerate(constants)})
    target = backend.GPUTarget("cuda", 90, 32)
    # Of half a gigabyte of Triton, which it remembers: here once, and not in each fork.
    importlib.import_module("triton.runtime.cache").triton_key()
    with forked(lambda: triton.compile(source, target=target, options={"num_ctas": 2}).asm["ptx"]) as text:
        return text()


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_conversion_moves_elements_between_ctas(before: str, after: str) -> None:
    out = torch.zeros(64, 64)
    assert (
        run(kernels.convert_kernel, (1,), (X, out, registers(before), registers(after)), num_ctas=2).findings
        == ()
    )
    assert out.equal(2 * X)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_conversion_moves_addresses_too(before: str, after: str) -> None:
    out = torch.zeros(64, 64)
    arguments = (X, out, registers(before), registers(after))
    assert run(kernels.convert_addresses_kernel, (1,), arguments, num_ctas=2).findings == ()
    assert out.equal(X)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("division", DIVISIONS)
def test_a_reduction_goes_over_all_ctas_and_all_have_it(division: str, axis: int, largest: bool) -> None:
    out = torch.zeros(64, 64)
    arguments = (X, out, registers(division), axis, largest)
    assert run(kernels.reduce_kernel, (1,), arguments, num_ctas=2).findings == ()
    reduced = X.amax(axis, keepdim=True) if largest else X.sum(axis, keepdim=True)
    assert out.equal(reduced.expand(64, 64))


def test_the_largest_number_is_no_nan() -> None:
    x, out = X.clone(), torch.zeros(64, 64)
    x[40, 3] = x[:, 7] = math.nan
    run(kernels.reduce_kernel, (1,), (x, out, registers("rows"), 0, True), num_ctas=2)
    assert out[0, 3] == X[63, 3]  # as max.f32 has it
    assert out[0, 7].isnan()


def through_shared(
    before: str, memory: str, after: str, *, meet: bool, at_once: bool = False
) -> tuple[Result, torch.Tensor]:
    out = torch.zeros(64, 64)
    arguments = (X, out, registers(before), shared(memory), registers(after), meet, at_once)
    return run(kernels.through_shared_kernel, (1,), arguments, num_ctas=2), out


DIVIDED = [
    (before, memory, after)
    for before in ("rows", "columns")
    for memory in ("rows", "columns")
    for after in DIVISIONS
]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("before", "memory", "after"), DIVIDED)
def test_a_buffer_that_ctas_divide_is_read_and_written_across_them(
    before: str, memory: str, after: str, at_once: bool
) -> None:
    """The kernel has to let the CTAs meet between the two: the compiler does not."""
    result, out = through_shared(before, memory, after, meet=True, at_once=at_once)
    assert result.findings == ()
    assert out.equal(X)
    result, _ = through_shared(before, memory, after, meet=False, at_once=at_once)
    if before == after:  # each reads what it has written itself, wherever that is
        assert result.findings == ()
        return
    kinds = {finding.kind for finding in result.findings}
    assert Kind.READ_AFTER_WRITE in kinds
    assert kinds <= {Kind.READ_AFTER_WRITE, Kind.WRITE_AFTER_READ, Kind.UNINITIALISED_READ}


@pytest.mark.parametrize("memory", ["rows", "columns"])
def test_what_all_ctas_store_into_each_others_memory_is_the_same(memory: str) -> None:
    result, out = through_shared("whole", memory, "rows", meet=True)
    assert out.equal(X)
    (found,) = result.findings
    assert (found.kind, found.severity) == (Kind.REDUNDANT_STORE, Severity.LINT)
    # Without a meeting the other CTA's store may come when this one has read, and goes on.
    result, _ = through_shared("whole", memory, "rows", meet=False)
    assert Kind.WRITE_AFTER_READ in {found.kind for found in result.findings}


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_buffer_that_each_cta_holds_whole_is_its_own(before: str, after: str) -> None:
    """What the other CTA has does not come there, even if both meet."""
    result, out = through_shared(before, "whole", after, meet=True)
    if before in ("whole", after):
        assert result.findings == ()
        assert out.equal(X)
    else:
        assert [finding.kind for finding in result.findings] == [Kind.UNINITIALISED_READ]


@pytest.mark.parametrize("other", DIVISIONS)
def test_ctas_meet_where_a_conversion_goes_across_them_and_nowhere_else(other: str) -> None:
    out, numbers = torch.zeros(64, 64), torch.zeros(64, 64)
    layouts = registers("rows"), registers("columns"), shared("rows"), registers(other)
    result = run(kernels.converted_between_kernel, (1,), (X, out, numbers, *layouts), num_ctas=2)
    assert numbers.eq(1).all()
    if other == "rows":  # to columns
        assert result.findings == ()
        assert out.equal(X)
    else:
        assert Kind.READ_AFTER_WRITE in {finding.kind for finding in result.findings}


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_compiler_goes_through_other_ctas_where_the_simulator_does(before: str, after: str) -> None:
    """Who reads and writes whose memory, and who is made to wait, in Triton's PTX."""
    code = ptx(kernels.convert_kernel, registers(before), registers(after))
    crosses = before not in ("whole", after)
    assert ("ld.shared::cluster" in code) == crosses
    assert (code.count("barrier.cluster.arrive") > 1) == crosses  # one is at the end
    memory, tensor = before, after
    layouts = registers(tensor), shared(memory), registers(tensor)
    code = ptx(kernels.through_shared_kernel, *layouts, False, False)
    for does in ("st.shared::cluster", "ld.shared::cluster"):
        assert (does in code) == (memory not in ("whole", tensor))
    assert code.count("barrier.cluster.arrive") == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_the_compiler_has_ctas_meet_where_they_divide_what_is_reduced(axis: int) -> None:
    code = ptx(kernels.reduce_kernel, registers("rows"), axis, False)
    assert ("ld.shared::cluster" in code) == (axis == 0)
    assert (code.count("barrier.cluster.arrive") > 1) == (axis == 0)


@pytest.mark.parametrize("both", [False, True])
def test_ctas_that_exchange_at_different_lines_are_refused(both: bool) -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    arguments = (X.clone(), flag, registers("rows"), registers("columns"), both)
    with pytest.raises(GemmgenError) as refused:
        run(kernels.parting_kernel, (1,), arguments, num_ctas=2, schedules=("lazy",))
    (found,) = refused.value.diagnostics
    own, other = (lines_of(FILE, f"# CTA {cta}") for cta in (0, 1))
    assert {found.line} <= own | other
    if both:
        (elsewhere,) = own | other - {found.line} if found.line in other else other
        assert f"line {elsewhere}:" in found.message
    assert found.message.endswith("the CTAs of a cluster must come to the same operation")


def test_a_layout_of_a_slot_may_be_that_of_a_ring() -> None:
    bases = [[0, 1 << i] for i in range(6)] + [[1 << i, 0] for i in range(5)]
    slot = gl.SharedLinearLayout(offset_bases=bases, block_bases=[[32, 0]])
    out = torch.zeros(64, 64)
    assert run(kernels.ring_kernel, (1,), (X, out, registers("rows"), slot), num_ctas=2).findings == ()
    assert out.equal(X)


def test_a_layout_that_interleaves_ctas_is_refused_with_a_line() -> None:
    interleaved = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [16, 0], [32, 0]],
        lane_bases=[[0, 4], [0, 8], [0, 16], [0, 32], [2, 0]],
        warp_bases=[[4, 0], [8, 0]],
        block_bases=[[1, 0]],
        shape=[64, 64],
    )
    with pytest.raises(GemmgenError) as refused:
        run(kernels.convert_kernel, (1,), (X, X.clone(), registers("rows"), interleaved), num_ctas=2)
    (found,) = refused.value.diagnostics
    assert found.message.startswith("a layout interleaves the CTAs of a cluster")
    assert found.line is not None


def test_a_slice_of_what_ctas_divide_is_refused_with_its_line() -> None:
    arguments = (X, torch.zeros(32, 64), registers("rows"), shared("rows"))
    with pytest.raises(GemmgenError) as refused:
        run(kernels.sliced_kernel, (1,), arguments, num_ctas=2)
    (found,) = refused.value.diagnostics
    assert "a slice of a buffer along what CTAs divide is not known to the simulator" in found.message
    assert {found.line} == lines_of(FILE, "buffer.slice(32, 32, 0)")


def test_what_nothing_defines_is_undefined_in_the_cta_that_gets_it() -> None:
    out = torch.zeros(64, 64)
    layouts = registers("rows"), registers("columns")
    assert run(kernels.quotient_kernel, (1,), (X, out, 4, *layouts), num_ctas=2).findings == ()
    assert out.equal(X + 16)
    (found,) = run(kernels.quotient_kernel, (1,), (X, out, 0, *layouts), num_ctas=2).findings
    assert found.kind is Kind.UNDEFINED_VALUE
    assert {found.lines[0]} == lines_of(FILE, "# where it is used")


CTA_TILE_M, TILE_N, CTA_K, STAGES = 64, 64, 64, 2


def divided_k(ctas: int) -> tuple[Result, torch.Tensor, torch.Tensor]:
    """Run D = A @ B, whose K `ctas` CTAs divide; return what was found, D, and what it should be."""
    bits = ctas.bit_length() - 1
    whole = [[0, 0]] * bits
    along_k, along_rows = [[0, 1 << i] for i in range(bits)], [[1 << i, 0] for i in range(bits)]
    k_steps = 2 * STAGES + 1
    k = k_steps * CTA_K * ctas - 24  # the last CTA's last tile ends beyond K

    def smem(bases: list[list[int]]) -> Any:
        return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, cga_layout=bases)

    accumulator = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE_N, 16], cga_layout=whole
    )
    # An accumulator's fragment is two columns, and the same eight rows below; then eight columns on.
    parts = gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 8, 0], [0, 0, 8], [0, 0, 16], [0, 0, 32]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        warp_bases=[[0, 16, 0], [0, 32, 0]],
        block_bases=[[1 << i, 0, 0] for i in range(bits)],
        shape=[ctas, CTA_TILE_M, TILE_N],
    )
    rows = CTA_TILE_M // ctas
    below = [[0, 1 << i, 0] for i in range(rows.bit_length() - 1)]
    # Of a CTA's rows: four columns a thread, then lanes and warps along the row and down, then registers.
    places = [*([0, 0, 4 << i] for i in range(4)), *below]
    summed = gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], *places[7:], *([1 << i, 0, 0] for i in range(bits))],
        lane_bases=places[:5],
        warp_bases=places[5:7],
        block_bases=[[0, rows << i, 0] for i in range(bits)],
        shape=[ctas, CTA_TILE_M, TILE_N],
    )
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-2, 3, (64, k), generator=generator).bfloat16() for _ in range(2))
    d = torch.zeros(CTA_TILE_M, TILE_N, dtype=torch.bfloat16)
    result = run(
        kernels.divided_k_kernel,
        (1,),
        (
            TensorDescriptor.from_tensor(a, [CTA_TILE_M, CTA_K * ctas], smem(along_k)),
            TensorDescriptor.from_tensor(b, [TILE_N, CTA_K * ctas], smem(along_k)),
            TensorDescriptor.from_tensor(d, [CTA_TILE_M, TILE_N], smem(along_rows)),
            k_steps,
            smem(whole),
            accumulator,
            parts,
            summed,
            STAGES,
        ),
        num_ctas=ctas,
        num_warps=4,
    )
    return result, d, (a.float() @ b.float().T).bfloat16()


@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_ctas_that_divide_k_add_up_their_sums(ctas: int) -> None:
    result, d, wanted = divided_k(ctas)
    assert result.findings == ()
    assert d.equal(wanted)


def multicast(meet: str) -> tuple[Result, bool]:
    """Copy a matrix tile by tile; return the result, and whether the copy is right."""
    x, out = torch.randn(256, 64), torch.zeros(256, 64)
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float32, cga_layout=DIVISIONS["whole"])
    x_desc = TensorDescriptor.from_tensor(x, [64, 64], layout)
    result = run(kernels.multicast_kernel, (1,), (x_desc, out, registers("whole"), 4, meet), num_ctas=2)
    return result, out.equal(x)


def test_a_cluster_barrier_orders_a_multicast_after_the_other_ctas_reads() -> None:
    result, right = multicast("full")
    assert result.findings == ()
    assert right


def test_a_missing_cluster_barrier_is_a_race_whose_text_names_the_barrier() -> None:
    first = multicast("none")[0].findings[0]
    assert first.kind is Kind.WRITE_AFTER_READ
    assert {first.line} == lines_of(FILE, "[step * 64, 0], ready, buffer, multicast=True")
    assert "a cluster.barrier() between the two" in first.text
    assert "fence" not in first.text


def test_a_relaxed_cluster_barrier_after_a_fence_is_no_missing_fence() -> None:
    (found,) = multicast("relaxed")[0].findings
    assert (found.kind, found.severity) == (Kind.MISSING_CLUSTER_BARRIER, Severity.ERROR)
    (relaxed,) = lines_of(FILE, "# relaxed")
    assert f"the cluster barrier at line {relaxed} is relaxed" in found.text
    assert "fence_async_shared" not in found.text


def test_a_read_of_what_the_other_cta_writes_names_the_cluster_barrier() -> None:
    result, _ = through_shared("rows", "rows", "columns", meet=False)
    assert {each.kind for each in result.findings} >= {Kind.UNINITIALISED_READ, Kind.READ_AFTER_WRITE}
    assert all("a cluster.barrier() between the two" in each.text for each in result.findings)
