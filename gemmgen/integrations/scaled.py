"""Generated kernels in place of torch's scaled_mm for scales of blocks: a function like it, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from gemmgen.integrations.caller import KernelCaller, is_recorded
from gemmgen.integrations.contexts import ReplacedFunction, Replacing
from gemmgen.integrations.kernels import BIAS, Kernel, dtypes_of, is_traceable, name_of, require_kernel, said
from gemmgen.integrations.operator import by_rows, remember
from gemmgen.integrations.reasons import why_torch_scaled
from gemmgen.integrations.scaled_operator import (
    BLOCK,
    INFERRING_NAME,
    ROWS,
    TILES,
    b_scale_of,
    product,
    scaled_mm,
)

INPUTS: Final = ("a", "b", "a_scale", "b_scale")
"""The tensors of a kernel with scales of blocks."""
NO_SWIZZLE: Final = 0
"""Torch's number of scales that lie as a matrix."""
E4M3: Final = torch.float8_e4m3fn


class ScaledKernel(NamedTuple):
    """A kernel with scales of blocks, and the calls that it is asked for."""

    name: str
    recipe: int
    """Torch's number for the scales of B."""
    has_bias: bool
    out_dtype: torch.dtype
    is_traceable: bool

    @classmethod
    def of(cls, kernel: Kernel) -> ScaledKernel:
        """Return a module or a library as such a kernel.

        Raises ValueError if it computes anything but e4m3 operands with 1 x 128 scales of A, and 1 x 128 or
        128 x 128 scales of B, and at most a bias, or if an earlier version generated it.
        """
        require_kernel(kernel)
        computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
        dtypes = dtypes_of(kernel)
        inputs, epilogue = computes.get("inputs"), computes.get("epilogue")
        has_bias = (inputs, epilogue) == ((*INPUTS, BIAS), (BIAS,))
        is_plain = (inputs, epilogue) == (INPUTS, ())
        of_blocks = computes.get("scale_vector") == BLOCK and computes.get("scale_columns", 1) in (1, BLOCK)
        types = (E4M3, E4M3, torch.float32, torch.float32)
        other = [
            f"{name} is {dtypes[name]}"
            for name, dtype in zip(INPUTS, types, strict=True)
            if dtypes.get(name, dtype) != dtype
        ]
        if other or not (of_blocks and (is_plain or has_bias)):
            what = "a @ b of e4m3 with fp32 scales of 1 x 128 of a, and 1 x 128 or 128 x 128 of b"
            found = ", ".join(other) or said(kernel)
            raise ValueError(f"{name_of(kernel)} computes no {what}: {found}")
        if not hasattr(kernel, "arrange_scales"):
            raise ValueError(f"{name_of(kernel)} has no arrange_scales: generate it again")
        return cls(
            name_of(kernel),
            TILES if computes.get("scale_columns", 1) == BLOCK else ROWS,
            has_bias,
            dtypes.get("out") or computes["out_dtype"],
            is_traceable(kernel),
        )


class _ScaledCall(NamedTuple):
    """A call of torch's function whose scales kernels may take."""

    mat_a: Tensor
    mat_b: Tensor
    scale_a: Tensor
    scale_b: Tensor
    bias: Tensor | None
    recipe: int
    inferred: bool
    out_dtype: torch.dtype
    use_fast_accum: bool

    @property
    def tensors(self) -> tuple[tuple[str, Tensor | None], ...]:
        """The tensors with their names."""
        return tuple((name, getattr(self, name)) for name in ("mat_a", "mat_b", "scale_a", "scale_b", "bias"))


class ScaledMM(KernelCaller):
    """A function like ``torch.nn.functional.scaled_mm``, which generated kernels compute.

    The kernels are modules or libraries of e4m3 operands with fp32 scales of blocks: BlockWise1x128 for A,
    and BlockWise128x128 or BlockWise1x128 for B. The first kernel that takes a call computes it. Torch
    computes any other call, or refuses it, and `reason` says why: other recipes, types or layouts, a CPU, a
    DTensor. `inferred` is the same for torch's older function.
    """

    def __init__(self, *kernels: Kernel, few_rows: Mapping[int, Kernel] | None = None) -> None:
        """Take the kernels in the order in which they are asked.

        `few_rows` has kernels for few rows of A, by the most rows: they are asked first, the one with the
        fewest rows first. A library chooses by the rows itself.

        Raises ValueError for a kernel that computes anything else (`ScaledKernel.of`), and without a kernel.
        """
        asked = by_rows(type(self).__name__, kernels, few_rows)
        self._kernels = tuple((ScaledKernel.of(kernel), most) for kernel, most in asked)
        for kernel, _ in asked:
            remember(kernel)
        self.reason = ""

    def __call__(
        self,
        mat_a: Tensor,
        mat_b: Tensor,
        scale_a: Any,
        scale_recipe_a: Any,
        scale_b: Any,
        scale_recipe_b: Any,
        swizzle_a: Any = None,
        swizzle_b: Any = None,
        bias: Tensor | None = None,
        output_dtype: torch.dtype | None = torch.bfloat16,
        contraction_dim: Sequence[int] = (),
        use_fast_accum: bool = False,
    ) -> Tensor:
        """Return D [M, N]; raise what torch raises.

        Args:
            mat_a: A [M, K], e4m3, K contiguous.
            mat_b: B [K, N], e4m3: the transposed view of [N, K] weights.
            scale_a: fp32 [M, ceil(K / 128)], a tensor or a list of one.
            scale_recipe_a: ``ScalingType.BlockWise1x128`` for kernels.
            scale_b: fp32 [4 ceil(K / 512), ceil(N / 128)], M-contiguous, of 128 x 128; [N, ceil(K / 128)] of
                1 x 128.
            scale_recipe_b: ``ScalingType.BlockWise128x128`` or ``BlockWise1x128`` for kernels.
            swizzle_a: None or ``NO_SWIZZLE`` for kernels.
            swizzle_b: The same for scales of B.
            bias: [N], of the kernel's type; taken by kernels with ``column_bias``.
            output_dtype: The type of D: that of the kernel.
            contraction_dim: Empty for kernels.
            use_fast_accum: Ignored by kernels, which add in full fp32 after every 128 of K.
        """
        arguments = (
            mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b, bias,
            output_dtype, contraction_dim, use_fast_accum,
        )  # fmt: skip
        torchs: Any = partial(TORCHS, *arguments)
        if is_recorded(arguments):
            return torchs()
        scales, recipes = (
            (_single(scale_a), _single(scale_b)),
            (_single(scale_recipe_a), _single(scale_recipe_b)),
        )
        reason = _why_other(scales, recipes, (swizzle_a, swizzle_b), contraction_dim, output_dtype)
        if reason:
            return self._answer(None, reason, torchs)
        call = _ScaledCall(
            mat_a, mat_b, cast(Tensor, scales[0]), cast(Tensor, scales[1]), bias, recipes[1].value, False,
            cast(torch.dtype, output_dtype), use_fast_accum,
        )  # fmt: skip
        return self._answer(call, self._why_torch(call), torchs)

    def inferred(
        self,
        input: Tensor,  # noqa: A002 - as torch calls it
        mat2: Tensor,
        scale_a: Tensor,
        scale_b: Tensor,
        bias: Tensor | None = None,
        scale_result: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        use_fast_accum: bool = False,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return D [M, N] as torch's older function, which infers the recipe from the shapes of scales.

        Args:
            input: A [M, K], e4m3, K contiguous.
            mat2: B [K, N], e4m3: the transposed view of [N, K] weights.
            scale_a: fp32 [M, ceil(K / 128)] for kernels.
            scale_b: fp32 [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N] for kernels.
            bias: As for scaled_mm.
            scale_result: None for kernels.
            out_dtype: The type of D, that of the kernel.
            use_fast_accum: Ignored by kernels.
            out: None for kernels.
        """
        arguments = (input, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
        torchs: Any = partial(TORCHS_INFERRING, *arguments, **({} if out is None else {"out": out}))
        if is_recorded(arguments):
            return torchs()
        recipe = _inferred_recipe(input, mat2, scale_a, scale_b)
        if out is not None or scale_result is not None or recipe is None or out_dtype is None:
            reason = "the scales are of no blocks that kernels take" if recipe is None else ""
            reason = reason or "kernels take no out, no scale_result, and D of a given type"
            return self._answer(None, reason, torchs)
        call = _ScaledCall(input, mat2, scale_a, scale_b, bias, recipe, True, out_dtype, use_fast_accum)
        return self._answer(call, self._why_torch(call), torchs)

    def _asked(self, call: _ScaledCall) -> list[tuple[ScaledKernel, int]]:
        """Return the kernels for the recipe, the bias and the type of D of a call, and their most rows."""
        wanted = call.recipe, call.bias is not None, call.out_dtype
        return [
            (kernel, most)
            for kernel, most in self._kernels
            if (kernel.recipe, kernel.has_bias, kernel.out_dtype) == wanted
        ]

    def _why_torch(self, call: _ScaledCall) -> str:
        """Return why no kernel is asked for a call; an empty string if one is."""
        reason = why_torch_scaled(call.tensors)
        if reason or self._asked(call):
            return reason
        bias = "a" if call.bias is not None else "no"
        return f"no kernel takes these scales of b with {bias} bias and a D of {call.out_dtype}"

    def _product(self, call: _ScaledCall) -> Tensor:
        b_scale = b_scale_of(call.scale_b, call.mat_a.shape[-1], call.recipe, inferred=call.inferred)
        return product(*call[:3], b_scale, call.bias, *_names_and_rows(self._asked(call)))

    def _traced(self, call: _ScaledCall) -> Tensor | None:
        asked = [each for each in self._asked(call) if _may_be_taken(each[0], call)]
        return scaled_mm(*call, *_names_and_rows(asked)) if asked else None


def _names_and_rows(kernels: Sequence[tuple[ScaledKernel, int]]) -> tuple[list[str], list[int]]:
    """Return the names of kernels and the most rows of A of each, as the operator takes them."""
    return [kernel.name for kernel, _ in kernels], [most for _, most in kernels]


def _single(value: Any) -> Any:
    """Return the only element of a list, or the value itself; None for a list of several."""
    if isinstance(value, (list, tuple)):
        values = cast("Sequence[Any]", value)
        return values[0] if len(values) == 1 else None
    return value


def _why_other(
    scales: tuple[Any, Any],
    recipes: tuple[Any, Any],
    swizzles: tuple[Any, Any],
    contraction_dim: Sequence[int],
    output_dtype: torch.dtype | None,
) -> str:
    """Return in which way a call of scaled_mm is none that kernels compute; an empty string if it may be."""
    found = tuple(getattr(recipe, "value", None) for recipe in recipes)
    if found[0] != ROWS or found[1] not in (ROWS, TILES):
        names = " and ".join(str(getattr(recipe, "name", recipe)) for recipe in recipes)
        return f"kernels take BlockWise1x128 of a, and BlockWise128x128 or BlockWise1x128 of b, found {names}"
    if not all(isinstance(scale, Tensor) for scale in scales):
        return "kernels take one tensor of scales for each operand"
    for swizzle in map(_single, swizzles):
        if swizzle is not None and getattr(swizzle, "value", None) != NO_SWIZZLE:
            return "kernels take scales without a swizzle"
    if len(contraction_dim):
        return "kernels take no contraction_dim"
    return "" if output_dtype is not None else "output_dtype is None, and kernels have a D of one type"


def _inferred_recipe(mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor) -> int | None:
    """Return the recipe of B that shapes of scales have for torch's older function; None for any other."""
    if not mat_a.dim() == mat_b.dim() == scale_a.dim() == scale_b.dim() == 2:
        return None
    (m, k), n = mat_a.shape, mat_b.shape[1]
    blocks = (k + BLOCK - 1) // BLOCK
    if tuple(scale_a.shape) != (m, blocks) or scale_b.shape[0] != blocks:
        return None
    if scale_b.shape[1] == (n + BLOCK - 1) // BLOCK:
        return TILES
    return ROWS if scale_b.shape[1] == n else None


def _may_be_taken(kernel: ScaledKernel, call: _ScaledCall) -> bool:
    """Return False if a kernel refuses a call for facts that torch guards: types, strides, gradients."""
    tensors = [tensor for _, tensor in call.tensors if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    mat_a, mat_b = call.mat_a, call.mat_b
    is_whole = mat_a.dim() == mat_b.dim() == 2 and mat_a.shape[1] % 16 == 0
    is_by_k = is_whole and mat_a.stride(1) == 1 and mat_b.stride(0) == 1
    has_types = (
        mat_a.dtype == mat_b.dtype == E4M3 and call.scale_a.dtype == call.scale_b.dtype == torch.float32
    )
    on_gpu = mat_a.device.type in ("cuda", "meta")  # the second stands for any
    return kernel.is_traceable and on_gpu and is_by_k and has_types


TORCHS: Final[Any] = getattr(functional, "scaled_mm", None)
"""Torch's function; None in releases without it."""
TORCHS_INFERRING: Final[Any] = getattr(torch, INFERRING_NAME)
"""Torch's older function."""


PLACE: Final = ReplacedFunction(functional, "scaled_mm")
"""The function with which models call torch's scaled_mm."""
PLACE_INFERRING: Final = ReplacedFunction(torch, INFERRING_NAME)
"""The older private function, which infers the recipe."""


def replace_scaled_mm(*kernels: Kernel, few_rows: Mapping[int, Kernel] | None = None) -> Replacing[ScaledMM]:
    """Return a context in which kernels compute the calls of torch's scaled_mm; it gives the `ScaledMM`.

    The arguments are the ones of `ScaledMM`. In the context, ``torch.nn.functional.scaled_mm`` calls it, and
    its older private twin in torch calls its `inferred`, for all threads, and for torch.compile and
    torch.export. The context does not change a model that imported the function itself before, or calls
    ``torch.ops``. Of several active contexts, the one that was entered last computes the calls. They may be
    left in any order.

    Raises ValueError as the constructor of `ScaledMM`.
    """
    scaled = ScaledMM(*kernels, few_rows=few_rows)
    return Replacing(scaled, [(PLACE, scaled), (PLACE_INFERRING, scaled.inferred)])
