"""Generated kernels in place of torch's grouped_mm: a function like it, and its calls in a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from gemmgen.integrations.caller import KernelCaller, is_eager, is_recorded
from gemmgen.integrations.contexts import ReplacedFunction, Replacing
from gemmgen.integrations.grouped_operator import ATEN_NAME, grouped_mm, product, torchs
from gemmgen.integrations.kernels import (
    Kernel,
    again_of,
    axes_of,
    dtypes_of,
    has_backward,
    is_traceable,
    name_of,
    require_kernel,
    said,
)
from gemmgen.integrations.operator import by_rows, find_kernel, remember
from gemmgen.integrations.reasons import why_torch_groups


class _Candidate(NamedTuple):
    """A kernel, and the calls that it is asked for."""

    name: str
    takes_offs: bool
    """True for ``matmul(a, b, offs=offs)`` of a 2-D A, False for ``matmul(a, b)`` of a 3-D A."""
    most_rows: int
    """Most rows of a group, in the mean of all groups."""
    dtype: torch.dtype | None
    """Type of A, B and D; None if the kernel has no table of arguments."""
    is_traceable: bool
    has_backward: bool


class _GroupedCall(NamedTuple):
    """The arguments of torch's function."""

    mat_a: Tensor
    mat_b: Tensor
    offs: Tensor | None
    bias: Tensor | None
    out_dtype: torch.dtype | None


class GroupedMM(KernelCaller):
    """A function like ``torch.nn.functional.grouped_mm``, which generated kernels compute.

    The kernels are modules of ``groups: {kind: m_offsets}`` for a 2-D `mat_a` with `offs`, and modules of
    ``groups: {kind: batched}`` for a 3-D `mat_a`. Of each kind, the first kernel that takes a call computes
    it. Torch computes any other call, or refuses it, and `reason` says why: something requires grad, has
    another type or layout, is on a CPU, is a DTensor.
    """

    def __init__(self, *kernels: Kernel, few_rows: Mapping[int, Kernel] | None = None) -> None:
        """Take the kernels in the order in which they are asked.

        `few_rows` has kernels for groups of few rows, by the most rows of a group, in the mean of all groups:
        they are asked first, the one with the fewest rows first.

        Raises ValueError for a kernel that computes anything but groups of a @ b, or whose D has another type
        than A, and without any kernel.
        """
        asked = by_rows(type(self).__name__, kernels, few_rows)
        candidates = [_candidate(kernel, most) for kernel, most in asked]
        self._candidates = tuple(
            tuple(each for each in candidates if each.takes_offs == takes_offs)
            for takes_offs in (False, True)
        )
        self._names_and_rows = tuple(map(_names_and_rows, self._candidates))
        for kernel, _ in asked:
            remember(kernel)
        self.reason = ""

    def __call__(
        self,
        mat_a: Tensor,
        mat_b: Tensor,
        offs: Tensor | None = None,  # torch's private function takes it by its place too
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the products of all groups, D [M, N] or [G, M, N]; raise what torch raises.

        Args:
            mat_a: A [M, K], whose rows `offs` divides into groups, or [G, M, K] without `offs`.
            mat_b: B [G, K, N]. Kernels take the transposed view of [G, N, K] weights (``weight.mT``).
            offs: The end of each group [G], int32, on the device, in rising order. Rows of D after the last
                end have any values.
            bias: Left to torch, which does not support it yet.
            out_dtype: The type of D: that of A.
        """
        if bias is None and out_dtype is None and (d := self._again(mat_a, mat_b, offs)) is not None:
            self._taken()
            return d
        call = _GroupedCall(mat_a, mat_b, offs, bias, out_dtype)
        if is_recorded(call):  # torch.fx records torch's operator
            return torchs(*call)
        return self._answer(call, self._why_torch(call), partial(torchs, *call))

    def _again(self, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None) -> Tensor | None:
        """Return the D of a call whose like a kernel has computed before; None for any other call."""
        inputs = (mat_a, mat_b) if offs is None else (mat_a, mat_b, offs)
        if not is_eager(*inputs) or mat_b.dim() != 3:
            return None
        rows, groups = mat_a.shape[:-1].numel(), mat_b.shape[0]
        for each in self._candidates[offs is not None]:
            if rows <= each.most_rows * groups:
                # A later kernel is for calls that this one refuses.
                repeat = again_of(find_kernel(each.name))
                return repeat and repeat(*inputs)
        return None

    def _why_torch(self, call: _GroupedCall) -> str:
        """Return why no kernel is asked for a call; an empty string if one is."""
        if reason := why_torch_groups(call.mat_a, call.mat_b, call.offs):
            return reason
        if call.bias is not None:
            return "kernels add no bias to groups"
        if call.out_dtype not in (None, call.mat_a.dtype):
            return f"out_dtype is {call.out_dtype}, and mat_a {call.mat_a.dtype}"
        wanted, words = (3, "without") if call.offs is None else (2, "with")
        dims = call.mat_a.dim(), call.mat_b.dim()
        if dims != (wanted, 3):
            given = f"{words} offs, found {dims[0]} and {dims[1]}"
            return f"kernels take {wanted} dimensions of mat_a and 3 of mat_b {given}"
        return "" if self._candidates[_kind(call)] else f"no kernel takes a call {words} offs"

    def _product(self, call: _GroupedCall) -> Tensor:
        return product(call.mat_a, call.mat_b, call.offs, *self._names_and_rows[_kind(call)])

    def _traced(self, call: _GroupedCall) -> Tensor | None:
        # Torch's compiler knows torch's operator: a kernel that refuses the call is no reason to hide it.
        asked = [each for each in self._candidates[_kind(call)] if _may_be_taken(each, call)]
        if not asked:
            return None
        if not _is_trained(call):
            return grouped_mm(call.mat_a, call.mat_b, call.offs, *_names_and_rows(asked))
        # The operator has no backward, and that of a module has one: the first one with a backward is taken.
        extras = {} if call.offs is None else {"offs": call.offs}
        return find_kernel(asked[0].name).matmul(call.mat_a, call.mat_b, **extras)


def _kind(call: _GroupedCall) -> int:
    """Return the place of the kernels for a call with offs or without."""
    return 0 if call.offs is None else 1  # Dynamo of torch 2.11 takes no bool as an index


PLACES: Final = (ReplacedFunction(functional, "grouped_mm"), ReplacedFunction(torch, ATEN_NAME))
"""The functions with which models call torch's grouped_mm: the public one, and the older private one."""


def replace_grouped_mm(
    *kernels: Kernel, few_rows: Mapping[int, Kernel] | None = None
) -> Replacing[GroupedMM]:
    """Return a context in which kernels compute the calls of torch's grouped_mm; it gives the `GroupedMM`.

    The arguments are the ones of `GroupedMM`. In the context, ``torch.nn.functional.grouped_mm`` and its
    private twin in torch call it, for all threads, and for torch.compile and torch.export. The context does
    not change a model that imported the function itself before, or calls ``torch.ops``. Of several active
    contexts, the one that was entered last computes the calls. They may be left in any order.

    Raises ValueError as the constructor of `GroupedMM`.
    """
    grouped = GroupedMM(*kernels, few_rows=few_rows)
    return Replacing(grouped, [(place, grouped) for place in PLACES])


def _candidate(kernel: Kernel, most_rows: int) -> _Candidate:
    """Return a kernel as a candidate; raise ValueError if it computes anything but groups of a @ b."""
    require_kernel(kernel)
    computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
    dtypes, axes = dtypes_of(kernel), axes_of(kernel)
    inputs = computes.get("inputs")
    takes_offs = inputs == ("a", "b", "offs")
    is_grouped = takes_offs or inputs == ("a", "b")
    if axes and is_grouped:
        of_a = ("M", "K") if takes_offs else ("groups", "M", "K")
        is_grouped = (axes["a"], axes["b"]) == (of_a, ("groups", "K", "N"))
    if not is_grouped or computes.get("epilogue") != ():
        raise ValueError(f"{name_of(kernel)} computes no groups of a @ b: {said(kernel)}")
    dtype = dtypes.get("a")
    if dtypes.get("out") != dtype:
        raise ValueError(
            f"{name_of(kernel)} makes {dtypes['out']} of {dtype}, and torch's grouped_mm does not"
        )
    return _Candidate(
        name_of(kernel), takes_offs, most_rows, dtype, is_traceable(kernel), has_backward(kernel)
    )


def _names_and_rows(candidates: Sequence[_Candidate]) -> tuple[list[str], list[int]]:
    """Return the names of kernels and the most rows of a group of each, as the operator takes them."""
    return [each.name for each in candidates], [each.most_rows for each in candidates]


def _is_trained(call: _GroupedCall) -> bool:
    """Return True if autograd follows a call."""
    return torch.is_grad_enabled() and (call.mat_a.requires_grad or call.mat_b.requires_grad)


def _may_be_taken(kernel: _Candidate, call: _GroupedCall) -> bool:
    """Return False if a kernel refuses a call for facts that torch guards: types, strides, gradients."""
    mat_a, mat_b = call.mat_a, call.mat_b
    if _is_trained(call) and not (kernel.has_backward and mat_a.is_contiguous()):
        return False  # torch computes the call and its gradients
    is_whole = mat_a.shape[-1] * mat_a.element_size() % 16 == 0
    is_by_k = mat_a.stride(-1) == 1 and mat_b.stride(-2) == 1
    has_type = mat_a.dtype == mat_b.dtype and kernel.dtype in (None, mat_a.dtype)
    on_gpu = mat_a.device.type in ("cuda", "meta")  # the second stands for any
    return kernel.is_traceable and on_gpu and is_whole and is_by_k and has_type
