"""Groups of rows beside ``torch.nn.functional.grouped_mm``: one test for each sentence of its contract.

Torch computes on the CPU what a module computes in the simulator, by way of the module's own `matmul`: its
checks, its descriptors and its compiled kernel. The tests of the last section compare both on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from modules import module_file
from simulated import on_a_gpu, signs, simulated
from torch import Tensor
from torch.nn import functional

from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
grouped_mm: Callable[..., Tensor] = getattr(functional, "grouped_mm", None) or any_torch._grouped_mm
"""Torch's function; releases before the public one have the private one alone."""
BF16, INT = torch.bfloat16, torch.int32
OFFSETS, BATCHED = "h100_bf16_grouped", "h100_bf16_batched"
OF_OFFSETS = [OFFSETS, *(f"{OFFSETS}_{kind}" for kind in ("pingpong", "rows8", "rows16", "rows64", "512"))]
OF_BATCHES = [BATCHED, f"{BATCHED}_rows8"]


@dataclass(frozen=True)
class Call:
    """The operands of a grouped matmul: A [M, K] or [G, M, K], B [G, K, N], and the end of each group."""

    a: Tensor
    b: Tensor
    offs: Tensor | None = None

    @classmethod
    def of(cls, ends: list[int] | int, *, m: int = 40, n: int = 32, k: int = 64, device: str = "cpu") -> Call:
        """Return random operands: of groups with these ends, or of a number of groups of `m` rows each."""
        if isinstance(ends, int):
            return cls(signs(ends, m, k, device=device), signs(ends, n, k, device=device).mT)
        offs = torch.tensor(ends, dtype=INT, device=device)
        return cls(signs(m, k, device=device), signs(len(ends), n, k, device=device).mT, offs)

    def ours(self, module: ModuleType, **options: Any) -> Tensor:
        """Return the D of a module."""
        extras = options if self.offs is None else {"offs": on_a_gpu(self.offs), **options}
        return module.matmul(on_a_gpu(self.a), on_a_gpu(self.b), **extras).as_subclass(Tensor)

    def torchs(self, **options: Any) -> Tensor:
        """Return the D of torch."""
        return grouped_mm(self.a, self.b, **({} if self.offs is None else {"offs": self.offs}), **options)

    @property
    def rows(self) -> int:
        """The rows of D that are of a group; with three dimensions, the rows of each group."""
        return self.a.shape[-2] if self.offs is None else int(self.offs[-1])

    def assert_equal(self, module: ModuleType, shape: tuple[int, ...]) -> None:
        """Compare shape, type, strides unless D has no element, and each row that is of a group."""
        ours, theirs = self.ours(module), self.torchs()
        assert ours.shape == theirs.shape == shape
        assert ours.dtype == theirs.dtype == self.a.dtype
        assert ours.stride() == theirs.stride() or not ours.numel()
        assert torch.equal(ours[..., : self.rows, :], theirs[..., : self.rows, :])


# --- shapes


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in the simulator: one with offsets, or the one that a test names."""
    return simulated(getattr(request, "param", OFFSETS), monkeypatch)


ENDS: dict[str, list[int]] = {
    "each group has rows": [3, 11, 12, 30, 40],
    "groups without rows are first, between others, and last": [0, 0, 17, 17, 40, 40],
    "one group has all rows": [0, 0, 40, 40, 40],
    "no group has a row": [0, 0, 0, 0, 0],
    "there is one group": [40],
    "rows after the last end are of no group": [3, 3, 10, 20, 30],
    "there are 32 groups of about one row": [*range(31), 40],
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("module", OF_OFFSETS, indirect=True)
def test_a_2d_a_is_cut_into_the_groups_whose_ends_offs_has(name: str, module: ModuleType) -> None:
    Call.of(ENDS[name]).assert_equal(module, (40, 32))


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
    # Torch's loop on a CPU does too; its kernel on a GPU would read and write outside of the tensors.
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


LAYOUTS: dict[str, Callable[[Call], Call]] = {
    "rows of A lie apart": lambda call: Call(torch.cat([call.a] * 2, 1)[:, :64], call.b, call.offs),
    "rows of B lie apart": lambda call: Call(call.a, signs(5, 32, 80)[:, :, :64].mT, call.offs),
    "A begins at a multiple of 16 bytes": lambda call: Call(signs(40, 80)[:, 8:72], call.b, call.offs),
    "A begins after some rows": lambda call: Call(signs(44, 64)[4:], call.b, call.offs),
    "B begins after a group": lambda call: Call(call.a, signs(6, 32, 64)[1:].mT, call.offs),
    "offs begin at any element": lambda call: Call(
        call.a, call.b, torch.tensor([9, 3, 3, 10, 20, 30], dtype=INT)[1:]
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_taken_by_both(name: str, module: ModuleType) -> None:
    LAYOUTS[name](Call.of([3, 3, 10, 20, 30])).assert_equal(module, (40, 32))


# --- calls that both refuse


def changed(**tensors: Tensor) -> Call:
    """Return a call with other tensors than the ones that both take."""
    return replace(Call.of([3, 3, 10, 20, 30]), **tensors)


REFUSED: dict[str, tuple[Call, str, str]] = {
    "offs of int64": (
        changed(offs=torch.tensor([3, 3, 10, 20, 30])),
        "Offsets have to be int32",
        "offs must be strided torch.int32, found strided torch.int64",
    ),
    "offs of two dimensions": (
        changed(offs=torch.tensor([[3, 3, 10, 20, 30]], dtype=INT)),
        "offs has to be 1D",
        "offs must have 1 dimensions, found shape [1, 5]",
    ),
    "offs of other groups": (
        changed(offs=torch.tensor([3, 3, 10, 20], dtype=INT)),
        "matrix batch sizes have to match",
        "offs must have shape [5], found [4]",
    ),
    "a B of another K": (
        changed(b=signs(5, 32, 72).mT),
        "contraction dimension of mat_a and mat_b must match",
        "b must have shape [5, 64, 32], found [5, 72, 32]",
    ),
    "a row of A": (
        changed(a=signs(64)),
        "mat_a has to be 2 or 3d",
        "a must have 2 dimensions, found shape [64]",
    ),
    "rows of A that are no multiple of 16 bytes": (
        changed(a=signs(40, 60), b=signs(5, 32, 60).mT),
        "strides should be multiple of 16 bytes",
        "a must have rows a multiple of 16 bytes apart, found 60 elements",
    ),
    "rows of B that are no multiple of 16 bytes": (
        changed(b=signs(5, 32, 68)[:, :, :64].mT),
        "strides should be multiple of 16 bytes",
        "b must have rows a multiple of 16 bytes apart, found 68 elements",
    ),
    "operands of two types": (
        changed(b=signs(5, 32, 64).half().mT),
        "expected m1 and m2 to have the same dtype",
        "b must be strided torch.bfloat16, found strided torch.float16",
    ),
    "operands of float64": (
        changed(a=signs(40, 64).double(), b=signs(5, 32, 64).double().mT),
        "Expected mat_a to be Float32, BFloat16 or Float16 matrix",
        "a must be strided torch.bfloat16, found strided torch.float64",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_by_both(name: str, module: ModuleType) -> None:
    call, theirs, ours = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"^{re.escape(theirs)}"):
        call.torchs()
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(ours)}$"):
        call.ours(module)


def test_offs_are_required_for_a_2d_a(module: ModuleType) -> None:
    call = Call(signs(40, 64), signs(5, 32, 64).mT)
    with pytest.raises(RuntimeError, match=r"^Have to provide offsets if there is a 2d matrix"):
        call.torchs()
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'offs'$"):
        call.ours(module)
    with pytest.raises(TypeError, match=r"^offs must be strided torch.int32, found NoneType$"):
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


TORCHS: dict[str, tuple[Call, str]] = {
    "A of columns": (
        changed(a=signs(64, 40).T),
        "a must lie in memory as M x K, found strides (1, 40): pass a contiguous M x K matrix",
    ),
    "B of columns": (
        changed(b=signs(5, 64, 8)),
        "b must lie in memory as E x N x K, found strides (512, 8, 1): pass weight.mT of an E x N x K weight",
    ),
    "A past a multiple of 16 bytes, which torch refuses on a GPU": (
        changed(a=signs(40, 72)[:, 1:65]),
        "a must start at a multiple of 16 bytes, found 2 bytes past one",
    ),
    "gaps between the groups of B": (
        changed(b=signs(5, 40, 64)[:, :32].mT),
        "b must have groups one behind the other, 2048 elements apart, found 2560",
    ),
    "one B for all groups": (
        changed(b=signs(1, 32, 64).expand(5, -1, -1).mT),
        "b must have groups one behind the other, 2048 elements apart, found 0",
    ),
    "float16": (
        changed(a=signs(40, 64).half(), b=signs(5, 32, 64).half().mT),
        "a must be strided torch.bfloat16, found strided torch.float16",
    ),
    "float32": (
        changed(a=signs(40, 64).float(), b=signs(5, 32, 64).float().mT),
        "a must be strided torch.bfloat16, found strided torch.float32",
    ),
    "a 3-D A and a 2-D B, whose columns offs divide": (
        changed(a=signs(5, 8, 64), b=signs(40, 64).T),
        "b must have 3 dimensions, found shape [64, 40]",
    ),
    "two 2-D operands, whose K offs divide": (
        changed(a=signs(40, 64).T, b=signs(40, 32)),
        "a must lie in memory as M x K, found strides (1, 64): pass a contiguous M x K matrix",
    ),
    "more groups than the module has slots for": (
        Call.of([*range(1, 33), 40]),
        "this kernel takes from 1 to 32 groups, found 33",
    ),
    "no groups": (
        Call(signs(0, 64), signs(0, 32, 64).mT, torch.zeros(0, dtype=INT)),
        "this kernel takes from 1 to 32 groups, found 0",
    ),
    "an A that requires grad": (
        changed(a=signs(40, 64).requires_grad_()),
        "a must not require grad (no backward): detach it",
    ),
    "a B that requires grad": (
        changed(b=signs(5, 32, 64).requires_grad_().mT),
        "b must not require grad (no backward): detach it",
    ),
}


@pytest.mark.parametrize("name", TORCHS)
def test_a_call_of_torch_alone_is_refused_with_its_reason(name: str, module: ModuleType) -> None:
    call, ours = TORCHS[name]
    assert call.torchs().numel() >= 0
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(ours)}$"):
        call.ours(module)


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_a_batch_of_columns_is_refused_with_the_layout_to_pass(module: ModuleType) -> None:
    call = Call(signs(5, 64, 8).mT, signs(5, 32, 64).mT)
    assert call.torchs().shape == (5, 8, 32)
    text = "a must lie in memory as E x M x K, found strides (512, 1, 8): pass a contiguous E x M x K matrix"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
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


@pytest.mark.parametrize("module", ["h100_bf16_batched_fp32out"], indirect=True)
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
