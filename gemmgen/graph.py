"""CUDA graphs of kernels."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def captured_graph() -> Generator[torch.cuda.CUDAGraph]:
    """Capture what is launched in the context; the graph can be replayed behind it.

    No garbage is collected meanwhile: Triton 3.9 unloads a kernel that nobody holds any more, another
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
