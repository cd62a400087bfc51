"""The GPU of this machine: whether it can run a kernel, CUDA graphs on it, whether a fault has lost it."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

import torch

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import GPUS, Architecture


def require_gpu(architecture: Architecture) -> torch.device:
    """Return the current GPU; raise GemmgenError (``no-gpu``) unless its compute capability is this one.

    The message names the products of the table of GPUs that have it.
    """
    needed = divmod(architecture.compute_capability, 10)
    if not torch.cuda.is_available():
        found = "torch finds no CUDA GPU"
    elif (capability := torch.cuda.get_device_capability()) != needed:
        found = f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}"
    else:
        return torch.device("cuda", torch.cuda.current_device())
    products = ", ".join(name.upper() for name, gpu in GPUS.items() if gpu.architecture == architecture)
    needs = f"a {architecture.generation} GPU, compute capability {needed[0]}.{needed[1]} ({products})"
    raise GemmgenError([Diagnostic("cuda", "no-gpu", f"{found}; the kernel needs {needs}")])


def context_lost() -> bool:
    """Return whether an earlier fault has made the CUDA context unusable: every later call would fail."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@contextmanager
def captured_graph() -> Generator[torch.cuda.CUDAGraph]:
    """Capture what is launched in the context; the graph can be replayed behind it.

    No garbage is collected meanwhile: Triton 3.9 unloads a kernel that is no longer held, another
    module's say, which CUDA does not permit while a stream is captured; it would end the capture.
    """
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield graph
    finally:
        gc.enable()
