"""Groups of rows beside ``torch.nn.functional.grouped_mm``: one test for each sentence of its contract.

Torch computes on the CPU what a module computes in the simulator, by way of the module's own `matmul`: its
checks, its descriptors and its compiled kernel. The tests of the last section compare both on a GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_triton import refusal
from grouped_calls import ENDS, LAYOUTS, REFUSED, TORCHS, Call, changed
from modules import module_file
from simulated import on_a_gpu, signs, simulated
from torch import Tensor

from gemmgen.module import import_generated

BF16, INT = torch.bfloat16, torch.int32
OFFSETS, BATCHED = "h100_bf16_grouped", "h100_bf16_batched"
OF_OFFSETS = [OFFSETS, *(f"{OFFSETS}_{kind}" for kind in ("ping_pong", "rows8", "rows16", "rows64", "512"))]
OF_BATCHES = [BATCHED, f"{BATCHED}_rows8"]


# --- shapes


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in the simulator: one with offsets, or the one that a test names."""
    return simulated(getattr(request, "param", OFFSETS), monkeypatch)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("module", OF_OFFSETS, indirect=True)
def test_a_2d_a_is_cut_into_the_groups_whose_ends_offs_has(name: str, module: ModuleType) -> None:
    Call.of(ENDS[name]).assert_equal(module, (40, 32))


@pytest.mark.sample(2)
@pytest.mark.parametrize("module", OF_OFFSETS, indirect=True)
def test_groups_have_any_number_of_rows_beside_the_tiles(module: ModuleType) -> None:
    Call.of([0, 129, 130, 290, 300], m=300, n=264, k=72).assert_equal(module, (300, 264))


@pytest.mark.parametrize(("groups", "m", "n"), [(5, 8, 32), (1, 70, 32), (3, 1, 264), (16, 3, 30)])
@pytest.mark.parametrize("module", OF_BATCHES, indirect=True)
def test_a_3d_a_has_a_matrix_for_each_group(groups: int, m: int, n: int, module: ModuleType) -> None:
    Call.of(groups, m=m, n=n).assert_equal(module, (groups, m, n))


@pytest.mark.parametrize("n", [30, 8, 1])
def test_rows_of_d_are_padded_to_16_bytes(n: int, module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30], n=n)
    call.assert_equal(module, (40, n))
    assert call.ours(module).stride() == (-(-n // 8) * 8, 1)


def test_there_may_be_no_rows_and_no_columns(module: ModuleType) -> None:
    Call.of([0, 0, 0], m=0).assert_equal(module, (0, 32))
    Call.of([1, 2, 40], n=0).assert_equal(module, (40, 0))


@pytest.mark.parametrize("module", OF_BATCHES, indirect=True)
def test_groups_may_have_no_rows(module: ModuleType) -> None:
    Call.of(5, m=0).assert_equal(module, (5, 0, 32))


def test_a_product_over_no_k_is_zero(module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    Call(call.a[:, :0], call.b[:, :0], call.offs).assert_equal(module, (40, 32))
    assert bool((Call.of([3, 3, 10, 20, 30], k=0).ours(module)[:30] == 0).all())


# --- offs


def test_an_end_after_the_last_row_counts_as_the_last_row(module: ModuleType) -> None:
    # Torch's loop on a CPU does the same. Its documentation excludes such ends, so a GPU is not asked.
    call = Call.of([10, 15, 20, 48, 1000])
    assert torch.equal(call.ours(module), call.torchs())


def test_an_end_of_all_rows_is_taken_though_the_documentation_says_strictly_less(module: ModuleType) -> None:
    call = Call.of([10, 15, 20, 30, 40])
    assert call.rows == len(call.a)
    assert torch.equal(call.ours(module), call.torchs())


def test_rows_after_the_last_end_stay_as_they_are_in_out_which_torch_does_not_have(
    module: ModuleType,
) -> None:
    # A new D of either has anything in them: both allocate it without writing it.
    call, out = Call.of([3, 3, 10, 20, 30]), on_a_gpu(torch.full((40, 32), 7.0, dtype=BF16))
    assert call.ours(module, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out[:30].as_subclass(Tensor), call.torchs()[:30])
    assert bool((out[30:] == 7).all())


def test_offs_are_read_when_a_call_runs(module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    assert call.offs is not None
    for ends in ([40, 40, 40, 40, 40], [0, 8, 16, 24, 32]):
        call.offs.copy_(torch.tensor(ends))
        call.assert_equal(module, (40, 32))


# --- layouts that both take


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_taken_by_both(name: str, module: ModuleType) -> None:
    LAYOUTS[name](Call.of([3, 3, 10, 20, 30])).assert_equal(module, (40, 32))


# --- calls that both refuse


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_by_both(name: str, module: ModuleType) -> None:
    call, theirs, argument, found = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"^{re.escape(theirs)}"):
        call.torchs()
    with pytest.raises((TypeError, ValueError), match=refusal(argument, found)):
        call.ours(module)


def test_offs_are_required_for_a_2d_a(module: ModuleType) -> None:
    call = Call(signs(40, 64), signs(5, 32, 64).mT)
    with pytest.raises(RuntimeError, match=r"^Have to provide offsets if there is a 2d matrix"):
        call.torchs()
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'offs'$"):
        call.ours(module)
    with pytest.raises(TypeError, match=r"^offs must be a tensor of torch.int32, found NoneType$"):
        call.ours(module, offs=None)


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_offs_are_refused_for_two_3d_operands(module: ModuleType) -> None:
    call = Call(signs(5, 8, 64), signs(5, 32, 64).mT, torch.zeros(5, dtype=INT))
    with pytest.raises(RuntimeError, match=r"or no offset if both matrices are 3d$"):
        call.torchs()
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'offs'$"):
        call.ours(module)


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_two_3d_operands_have_the_same_groups(module: ModuleType) -> None:
    call = Call(signs(4, 8, 64), signs(5, 32, 64).mT)
    with pytest.raises(RuntimeError, match=r"^batched dimension has to match$"):
        call.torchs()
    with pytest.raises(ValueError, match=r"^b must have shape \[4, 64, 32\], found \[5, 64, 32\]$"):
        call.ours(module)


def test_a_bias_is_supported_by_neither(module: ModuleType) -> None:
    call, bias = Call.of([3, 3, 10, 20, 30]), torch.zeros(32, dtype=BF16)
    with pytest.raises(RuntimeError, match=r"^Bias not supported yet$"):
        call.torchs(bias=bias)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'bias'$"):
        call.ours(module, bias=bias)


def test_d_has_the_type_of_a_and_a_module_has_one_type_of_d(module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    assert torch.equal(call.torchs(out_dtype=BF16)[:30], call.ours(module)[:30])
    with pytest.raises(RuntimeError, match=r"^Grouped gemm output dtype must match `mat_a` dtype$"):
        call.torchs(out_dtype=torch.float32)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'out_dtype'$"):
        call.ours(module, out_dtype=BF16)


# --- calls that torch alone takes


@pytest.mark.parametrize("name", TORCHS)
def test_a_call_of_torch_alone_is_refused_with_its_reason(name: str, module: ModuleType) -> None:
    call, argument, found = TORCHS[name]
    assert call.torchs().numel() >= 0
    with pytest.raises((TypeError, ValueError), match=refusal(argument, found)):
        call.ours(module)


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_a_batch_of_columns_is_refused_with_the_layout_to_pass(module: ModuleType) -> None:
    call = Call(signs(5, 64, 8).mT, signs(5, 32, 64).mT)
    assert call.torchs().shape == (5, 8, 32)
    with pytest.raises(ValueError, match=refusal("a", "strides (512, 1, 8)")):
        call.ours(module)


def test_a_tensor_of_the_cpu_is_refused(module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    with pytest.raises(ValueError, match=r"^a must be on a CUDA device, found cpu$"):
        module.matmul(call.a, call.b, offs=call.offs)


def test_a_call_without_a_gradient_is_taken(module: ModuleType) -> None:
    call = changed(a=signs(40, 64).requires_grad_(), b=signs(5, 32, 64).requires_grad_().mT)
    with torch.no_grad():
        call.assert_equal(module, (40, 32))
    with torch.inference_mode():
        call.assert_equal(module, (40, 32))


# --- calls that a module alone takes


def test_an_a_of_more_dimensions_has_the_rows_of_all(module: ModuleType) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    more = Call(call.a.view(2, 20, 64), call.b, call.offs)
    with pytest.raises(RuntimeError):
        more.torchs()
    assert torch.equal(more.ours(module).flatten(0, 1)[:30], call.torchs()[:30])


@pytest.mark.parametrize("module", ["h100_bf16_batched_fp32_out"], indirect=True)
def test_a_module_may_have_a_d_of_float32_which_torch_documents_and_refuses(module: ModuleType) -> None:
    call = Call.of(3, m=70)
    with pytest.raises(RuntimeError, match=r"^Grouped gemm output dtype must match `mat_a` dtype$"):
        call.torchs(out_dtype=torch.float32)
    d = call.ours(module)
    assert d.dtype == torch.float32
    assert torch.equal(d, call.a.float() @ call.b.float())


def test_rows_of_no_group_stay_as_they_are_for_no_k(module: ModuleType) -> None:
    call, out = Call.of([3, 3, 10, 20, 30], k=0), on_a_gpu(torch.full((40, 32), 7.0, dtype=BF16))
    call.ours(module, out=out)
    assert bool((out[:30] == 0).all())
    assert bool((out[30:] == 7).all())


@pytest.mark.parametrize("module", ["h100_bf16_masked"], indirect=True)
def test_masked_rows_stay_as_they_are_for_no_k(module: ModuleType) -> None:
    a, b = on_a_gpu(signs(5, 8, 0)), on_a_gpu(signs(5, 32, 0)).mT
    out, counts = on_a_gpu(torch.full((5, 8, 32), 7.0, dtype=BF16)), [3, 0, 8, 1, 2]
    module.matmul(a, b, rows=on_a_gpu(torch.tensor(counts, dtype=INT)), out=out)
    for group, count in enumerate(counts):
        assert bool((out[group, :count] == 0).all())
        assert bool((out[group, count:] == 7).all())


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("stem", OF_OFFSETS)
def test_a_2d_a_is_cut_into_groups_as_by_torch_on_a_gpu(stem: str, name: str) -> None:
    Call.of(ENDS[name], device="cuda").assert_equal(import_generated(module_file(stem)), (40, 32))


@pytest.mark.gpu
@pytest.mark.parametrize("stem", OF_OFFSETS)
def test_groups_have_any_number_of_rows_beside_the_tiles_on_a_gpu(stem: str) -> None:
    call = Call.of([0, 129, 130, 290, 300], m=300, n=264, k=72, device="cuda")
    call.assert_equal(import_generated(module_file(stem)), (300, 264))


@pytest.mark.gpu
@pytest.mark.parametrize(("groups", "m", "n"), [(5, 8, 32), (1, 70, 32), (3, 1, 264), (16, 3, 40)])
@pytest.mark.parametrize("stem", OF_BATCHES)
def test_a_3d_a_has_a_matrix_for_each_group_on_a_gpu(stem: str, groups: int, m: int, n: int) -> None:
    call = Call.of(groups, m=m, n=n, device="cuda")
    call.assert_equal(import_generated(module_file(stem)), (groups, m, n))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_taken_by_both_on_a_gpu(name: str) -> None:
    call = LAYOUTS[name](Call.of([3, 3, 10, 20, 30]))
    there = Call(*(moved(tensor) for tensor in (call.a, call.b, call.offs)))
    there.assert_equal(import_generated(module_file(OFFSETS)), (40, 32))


def moved(tensor: Tensor | None) -> Any:
    """Return a tensor on the GPU with the strides, and the place in its memory, of one on the CPU."""
    if tensor is None:
        return None
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).cuda()
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@pytest.mark.gpu
def test_an_address_that_is_no_multiple_of_16_bytes_is_refused_by_both_on_a_gpu() -> None:
    call = replace(Call.of([3, 3, 10, 20, 30], device="cuda"), a=signs(40, 72, device="cuda")[:, 1:65])
    with pytest.raises(RuntimeError):
        call.torchs()
    with pytest.raises(ValueError, match=r"^a must start at a multiple of 16 bytes, found 2 bytes past one$"):
        call.ours(import_generated(module_file(OFFSETS)))


@pytest.mark.gpu
def test_rows_after_the_last_end_stay_as_they_are_in_out_on_a_gpu() -> None:
    call = Call.of([3, 3, 10, 20, 30], device="cuda")
    out = torch.full((40, 32), 7.0, dtype=BF16, device="cuda")
    assert call.ours(import_generated(module_file(OFFSETS)), out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out[:30], call.torchs()[:30])
    assert bool((out[30:] == 7).all())


@pytest.mark.gpu
def test_rows_of_no_group_stay_as_they_are_for_no_k_on_a_gpu() -> None:
    call = Call.of([3, 3, 10, 20, 30], k=0, device="cuda")
    out = torch.full((40, 32), 7.0, dtype=BF16, device="cuda")
    call.ours(import_generated(module_file(OFFSETS)), out=out)
    assert bool((out[:30] == 0).all())
    assert bool((out[30:] == 7).all())
