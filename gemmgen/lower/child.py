"""Compile one generated module to machine code, in a process of its own: ``python -m gemmgen.lower.child``.

Some illegal kernels abort the process, and MLIR prints its errors to file descriptor 2; both must reach
the parent as text, not take it along. Argument 1 is the module, argument 2 the compute capability,
argument 3 the directory into which ``kernel.<stage>`` and ``kernel.json`` are written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast


def compile_module(module_path: Path, compute_capability: int, directory: Path) -> None:
    """Write TTGIR, LLVM IR, PTX, cubin and metadata of the module's kernel into `directory`."""
    import triton  # pyright: ignore[reportMissingTypeStubs]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
    from triton.experimental.gluon import GluonASTSource  # pyright: ignore[reportMissingTypeStubs]

    from gemmgen.module import import_generated

    module = import_generated(module_path)
    kernel = cast(Any, triton).compile(
        GluonASTSource(module.matmul_kernel, module.lower_signature()),
        target=GPUTarget("cuda", compute_capability, 32),
        options=module.LAUNCH_OPTIONS,
    )
    for stage in ("ttgir", "llir", "ptx"):
        (directory / f"kernel.{stage}").write_text(kernel.asm[stage])
    (directory / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    # Kernels without tensor memory have no figure for it.
    metadata = {
        "shared": kernel.metadata.shared,
        "num_warps": kernel.metadata.num_warps,
        "tmem_size": getattr(kernel.metadata, "tmem_size", None) or 0,
    }
    (directory / "kernel.json").write_text(json.dumps(metadata))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the compiler would not look for Python's interrupt
    compile_module(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    # A fresh compile makes nanobind report leaks at exit, on the descriptor that carries errors: skip it.
    os._exit(0)
