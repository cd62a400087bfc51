"""A Gluon kernel and its arguments to TTGIR in generic form, by Triton's own pipeline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gemmgen.simulate.child import in_child
from gemmgen.simulate.errors import refusal
from gemmgen.target import Architecture

TRITON = "3.9."
"""The release whose passes and generic form this file was written against."""


@dataclass(frozen=True)
class Lowered:
    """What the compiler made of a kernel."""

    text: str
    """The module in generic form, after the allocation of shared memory and warps."""
    library: str
    """Directory of Triton's source."""
    arguments: Mapping[str, Any]
    """The values of the kernel's run-time parameters, by name."""


def lower_kernel(
    kernel: Any, args: Sequence[Any], machine: Architecture, options: Mapping[str, Any]
) -> Lowered:
    """Specialize a kernel for its arguments as a launch does, and compile it as far as it is simulated.

    The compiler runs in a child process: some illegal kernels abort it.

    Raises:
        GemmgenError: The compiler refuses the kernel, or is not the one that is known.
    """
    # Triton warns when this is unset, and nothing here depends on it: no PTX is made.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton  # pyright: ignore[reportMissingTypeStubs]

    version = cast(str, cast(Any, triton).__version__)
    if not version.startswith(TRITON):
        raise refusal(f"the simulator knows Triton {TRITON}x, found {version}", code="unknown-triton")
    library = str(Path(triton.__file__).parent) + os.sep
    source, backend, parsed, bound = _specialize(kernel, args, machine, options)
    text = in_child(lambda: _compile(source, backend, parsed, machine))
    return Lowered(text, library, bound)


def _specialize(
    kernel: Any, args: Sequence[Any], machine: Architecture, options: Mapping[str, Any]
) -> tuple[Any, Any, Any, dict[str, Any]]:
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
    from triton.compiler.compiler import make_backend  # pyright: ignore[reportMissingTypeStubs]
    from triton.experimental.gluon import GluonASTSource  # pyright: ignore[reportMissingTypeStubs]
    from triton.runtime.jit import (  # pyright: ignore[reportMissingTypeStubs]
        create_function_from_signature,  # pyright: ignore[reportUnknownVariableType]
    )

    target = GPUTarget("cuda", machine.compute_capability, machine.threads_per_warp)
    backend: Any = cast(Any, make_backend)(target)
    binder: Any = cast(Any, create_function_from_signature)(kernel.signature, kernel.params, backend)
    given = {name: value for name, value in options.items() if value is not None}
    bound, specialization, extra = binder(*args, **given)
    parsed, signature, constexprs, attrs = kernel._pack_args(backend, extra, bound, specialization, extra)
    source = GluonASTSource(kernel, signature, constexprs, attrs)
    runtime = {name: value for name, value in bound.items() if signature[name] != "constexpr"}
    if any(isinstance(value, tuple) for value in runtime.values()):
        raise refusal("tuples of run-time arguments are not known to the simulator")
    return source, (backend, target), parsed, runtime


def _compile(source: Any, backend_and_target: Any, options: Any, machine: Architecture) -> str:
    from triton._C.libtriton import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
        ir as ir_,  # pyright: ignore[reportUnknownVariableType]
    )
    from triton._C.libtriton import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
        nvidia as nvidia_,  # pyright: ignore[reportUnknownVariableType]
    )
    from triton._C.libtriton import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
        passes as passes_,  # pyright: ignore[reportUnknownVariableType]
    )
    from triton.backends.nvidia.compiler import (  # pyright: ignore[reportMissingTypeStubs]
        get_ptx_version_from_options,  # pyright: ignore[reportUnknownVariableType]
    )

    ir, nvidia, passes = cast(Any, ir_), cast(Any, nvidia_), cast(Any, passes_)
    backend, target = backend_and_target
    capability = machine.compute_capability
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    module = backend.gluon_to_ttgir(module, {}, options, capability)
    manager = ir.pass_manager(context)
    manager.enable_debug()  # keeps the names of values
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager, False)
    # Not in Triton's order, which lowers scf first: structured control flow is easier to run, and allocation
    # works on either.
    passes.gluon.add_inliner(manager)
    ptx_version = cast(Any, get_ptx_version_from_options)(options, target.arch)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, capability, ptx_version)
    nvidia.passes.ttnvgpuir.add_allocate_tensor_memory(manager)
    # Inserts the barriers that the compiled kernel has between the CTAs of a cluster: at its beginning, at
    # its end, and where shared memory is reused across CTAs.
    nvidia.passes.ttgpuir.add_membar(manager, capability, ptx_version)
    manager.run(module, "allocate")
    # A module that fails verification prints in generic form; this attribute must be a string.
    module.set_attr("llvm.data_layout", ir.builder(context).get_int32_attr(0))
    return module.str()
