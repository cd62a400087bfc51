"""What only a GPU can show: graphs, streams, and whether there is a GPU that can run the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.graph import captured_graph
from gemmgen.problem import Check
from gemmgen.problem.case import Case
from gemmgen.problem.dtype import bits, poison
from gemmgen.target import BLACKWELL, GPUS, HOPPER, Architecture
from gemmgen.verify.checks import Group, compared

FAMILIES: Final = {HOPPER: "Hopper", BLACKWELL: "Blackwell"}
DELAY_BYTES: Final = 256 << 20
DELAY_PASSES: Final = 50
"""Passes over the delay buffer, 0.5 GB of traffic each: 6 ms at 4.3 TB/s, where a launch takes 0.03 ms."""


def require_gpu(architecture: Architecture) -> torch.device:
    """Return the current GPU; raise GemmgenError (``no-gpu``) unless its compute capability is this one."""
    needed = divmod(architecture.compute_capability, 10)
    if not torch.cuda.is_available():
        found = "torch finds no CUDA GPU"
    elif (capability := torch.cuda.get_device_capability()) != needed:
        found = f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}"
    else:
        return torch.device("cuda", torch.cuda.current_device())
    products = ", ".join(name.upper() for name, gpu in GPUS.items() if gpu.architecture == architecture)
    needs = f"a {FAMILIES[architecture]} GPU, compute capability {needed[0]}.{needed[1]} ({products})"
    raise GemmgenError([Diagnostic("cuda", "no-gpu", f"{found}; the kernel needs {needs}")])


def context_lost() -> bool:
    """Return whether an earlier fault has made the CUDA context unusable: every later call would fail."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def captured(case: Case) -> Iterator[Check]:
    """Check that a CUDA graph of one call replays to the bits of a call outside a graph."""
    inputs = case.inputs()
    first = case.run(inputs).clone()
    with captured_graph() as graph:
        out = inputs.call(case.matmul)

    def replay() -> Tensor:
        out.fill_(poison(out.dtype))
        graph.replay()
        return out

    yield from compared(case, "cuda graph", first, replay)


def streamed(case: Case) -> Iterator[Check]:
    """Check that a call under another stream runs on it.

    The inputs become valid on that stream only after a delay; a kernel launched elsewhere would read poison.
    """
    inputs = case.inputs()
    first = case.run(inputs).clone()
    late = [tensor.clone() for tensor in inputs.tensors]
    delay = torch.ones(DELAY_BYTES, dtype=torch.uint8, device=case.device)
    for tensor in inputs.tensors:
        tensor.fill_(poison(tensor.dtype))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # The memory of d and of packed scales: to get it from the driver later could mean to wait.
        case.output()
        if case.pack_scales is not None:
            inputs.packed(case.pack_scales)
        for _ in range(DELAY_PASSES):
            delay.bitwise_not_()
        for tensor, valid in zip(inputs.tensors, late, strict=True):
            tensor.copy_(valid)
        out = case.run(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    count = int((bits(out) != bits(first)).sum().item())
    yield case.check("side stream: elements that differ", count, 0)


GPU_ONLY: tuple[tuple[str, Group], ...] = (("cuda graph", captured), ("side stream", streamed))
"""Every group that needs a GPU, with the name that progress and failures show."""
