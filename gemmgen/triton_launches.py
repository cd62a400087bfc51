"""The launches of programs that use Triton, diverted to a function, on a machine without a GPU.

Private names of Triton's driver, runtime and interpreter stand here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.triton_api import FUSION_VARIABLE, binding, replaced, require

LaunchHook = Callable[[Any, Any, tuple[Any, ...], Mapping[str, Any]], object]
"""Takes a kernel, its grid (None for a warm-up, which compiles and launches nothing), and its arguments."""
Multiply = Callable[..., Any]
"""Returns accumulator + a @ b of tensors a, b and accumulator; ``keeps_fp32`` is false where tf32 will do."""


@contextmanager
def launches_diverted(
    hook: LaunchHook, compute_capability: int, properties: Mapping[str, int], multiply: Multiply
) -> Generator[None]:
    """Give every launch of a Gluon kernel to a function, and let Triton find a GPU that is not there.

    Triton's interpreter runs the kernels of ``@triton.jit``; `multiply` computes their ``tl.dot``.

    `properties` are the GPU's, as Triton's driver names them. A timed function runs once.

    Raises:
        GemmgenError: Triton is not there in the supported release.
    """
    require()
    os.environ.setdefault(FUSION_VARIABLE, "1")
    import triton.testing  # pyright: ignore[reportMissingTypeStubs]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
    from triton.experimental.gluon._runtime import (  # pyright: ignore[reportMissingTypeStubs]
        GluonJITFunction,
    )
    from triton.runtime.driver import driver  # pyright: ignore[reportMissingTypeStubs]
    from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> object:
        for before in kernel.pre_run_hooks:
            before(*args, **keywords)
        return hook(kernel, None if warmup else grid, args, keywords)

    def interpret(kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        if not warmup:
            _interpreted(kernel, grid, args, keywords, multiply)

    def once(function: Callable[[], object], *_: Any, quantiles: Any = None, **keywords: Any) -> Any:
        function()
        several = quantiles is not None or keywords.get("return_mode") == "all"
        return [1.0] * (len(quantiles) if quantiles is not None else 1) if several else 1.0

    cublas = binding("nvidia").cublas
    pretended = _Driver(GPUTarget("cuda", compute_capability, 32), properties, once)
    names = ("do_bench", "do_bench_cudagraph", "do_bench_proton")
    changes: list[tuple[Any, str, Any]] = [
        (GluonJITFunction, "run", run),
        (JITFunction, "run", interpret),
        *((triton.testing, name, once) for name in names if hasattr(triton.testing, name)),
        (driver, "_default", pretended),
        (driver, "_active", pretended),
        (cublas, "CublasLt", _Cublas),
    ]
    with replaced(changes):
        yield


def _interpreted(
    kernel: Any, grid: Any, args: tuple[Any, ...], keywords: Mapping[str, Any], multiply: Multiply
) -> None:
    """Run a kernel of ``@triton.jit`` in Triton's interpreter, on tensors of the CPU.

    Functions that the kernel calls are jitted too, and are interpreted in turn.

    Raises:
        GemmgenError: The interpreter refuses the kernel (``interpreter-failed``).
    """
    from triton.runtime.errors import InterpreterError  # pyright: ignore[reportMissingTypeStubs]
    from triton.runtime.interpreter import (  # pyright: ignore[reportMissingTypeStubs]
        InterpretedFunction,
        InterpreterBuilder,
        _patch_lang,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
    )
    from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

    def called(function: Any, *inner: Any, **named: Any) -> Any:
        # The interpreter's own call leaves the language replaced, and Gluon kernels need it as it was.
        scope: Any = cast(Any, _patch_lang)(function.fn)
        try:
            return cast(Any, InterpretedFunction)(function.fn).rewrite()(*inner, **named)
        finally:
            scope.restore()

    extents: Any = grid
    if not callable(extents):
        extents = tuple(extents) if hasattr(extents, "__len__") else (extents,)
    run = cast(Any, InterpretedFunction)(kernel.fn)
    try:
        dot = (InterpreterBuilder, "create_dot", _dot_by(multiply))
        with replaced([(JITFunction, "__call__", called), dot]):
            run.run(*args, grid=extents, warmup=False, **keywords)
    except InterpreterError as error:
        file, line = kernel.file_name, kernel.def_file_line_number
        message = f"Triton's interpreter refuses {kernel.__name__}: {' '.join(str(error).split())}"
        raise GemmgenError([Diagnostic(file, "interpreter-failed", message, line=line)]) from error


_ELEMENTS = {
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "int8": "int8",
}
"""Names in torch of the types that ``tl.dot`` multiplies, by Triton's."""
_SUMS = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "int32": "int32"}
"""Names in torch of the types of its sums."""


def _dot_by(multiply: Multiply) -> Callable[..., Any]:
    """Return the interpreter's ``tl.dot``; a function computes it, if it has the types and the precision."""
    import torch
    from triton.runtime.interpreter import (  # pyright: ignore[reportMissingTypeStubs]
        InterpreterBuilder,
        TensorHandle,
    )

    own: Any = cast(Any, InterpreterBuilder).create_dot
    precisions = binding("ir").INPUT_PRECISION
    keeps_fp32 = {precisions.TF32: False, precisions.IEEE: True}

    def tensor(handle: Any, names: Mapping[str, str]) -> Any:
        # numpy has no type for some elements: it has their bits.
        bits: Any = cast(Any, torch).from_numpy(handle.data.copy())
        return bits.view(getattr(torch, names[handle.dtype.scalar.name]))

    def create_dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, most_imprecise: Any) -> Any:
        known = a.dtype.scalar.name in _ELEMENTS and b.dtype.scalar.name in _ELEMENTS
        if not known or d.dtype.scalar.name not in _SUMS or precision not in keeps_fp32:
            return own(builder, a, b, d, precision, most_imprecise)
        factors = (tensor(each, _ELEMENTS) for each in (a, b))
        total = multiply(*factors, tensor(d, _SUMS), keeps_fp32=keeps_fp32[precision])
        return cast(Any, TensorHandle)(total.numpy(), d.dtype.scalar)

    return create_dot


def out_of_shared_memory(required: int, limit: int) -> Exception:
    """Return the error that Triton's launcher raises for a kernel with too much shared memory, in bytes."""
    from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingTypeStubs]

    return cast(Any, OutOfResources)(required, limit, "shared memory")


class _Cublas:
    """The baseline of Triton's programs: cuBLAS, computed by torch."""

    def __init__(self, workspace: object) -> None:
        pass

    def matmul(self, a: Any, b_transposed: Any, c: Any) -> None:
        c.copy_((a.float() @ b_transposed.float().T).to(c.dtype))


class _Driver:
    """A driver for Triton and programs, of a GPU that is not there."""

    def __init__(self, target: Any, properties: Mapping[str, int], benchmark: Callable[..., Any]) -> None:
        self._target = target
        self._benchmark = benchmark
        self.utils = SimpleNamespace(
            get_device_properties=self._get_device_properties, set_current_device=self._set_current_device
        )
        self._properties = dict(properties)

    def _get_device_properties(self, _: object) -> dict[str, int]:
        return self._properties

    def _set_current_device(self, _: int) -> None:
        pass

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return importlib.import_module("torch").device("cpu")

    def get_device_interface(self) -> Any:
        return importlib.import_module("torch").cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return self._benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        return importlib.import_module("torch").empty(0)

    def clear_cache(self, _: object) -> None:
        pass
