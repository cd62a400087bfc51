"""The machine: its versions, the stages that can run on it, and the use of its GPU."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gemmgen import __version__, triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import GPUS, Architecture
from gemmgen.hardware.gpus import architectures, targets_of

if TYPE_CHECKING:
    import torch

DRIVER = Path("/proc/driver/nvidia/version")
"""Where Linux shows the version of NVIDIA's driver, behind ``Kernel Module``."""


@dataclass(frozen=True)
class Doctor:
    """Versions, the GPU, and for every stage whether it runs here or why not."""

    versions: dict[str, str]
    gpu: str
    stages: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {"versions": self.versions, "gpu": self.gpu, "stages": self.stages}


def examine() -> Doctor:
    """Look at the installed packages and at the GPU."""
    torch = _torch()
    gpu, capability = _gpu(torch)
    versions = {
        "gemmgen": __version__,
        "python": platform.python_version(),
        "triton": triton_api.found_version() or "not installed",
        "torch": torch if isinstance(torch, str) else str(torch.__version__),
        "CUDA of torch": "none" if isinstance(torch, str) else torch.version.cuda or "none: a CPU build",
        "NVIDIA driver": _driver(),
    }
    packages = ("pydantic", "jinja2", "ruamel.yaml", "typer", "rich", "matplotlib")
    versions |= {package: _version(package) for package in packages}
    compiling = _verdict(require_compiler)
    return Doctor(
        versions,
        gpu,
        {
            "plan, check, schema, list": "yes",
            "build, lower, simulate": compiling,
            "test, bench": compiling if compiling != "yes" else _verdict_on(gpu, capability),
        },
    )


def require_compiler() -> None:
    """Return if torch, and Triton in the supported release, are installed.

    Raises:
        GemmgenError: One of the two is not (``no-torch``, ``no-triton``, ``unknown-triton``).
    """
    if importlib.util.find_spec("torch") is None:
        message = f"torch is not installed, and this needs it: {triton_api.INSTALL}"
        raise GemmgenError([Diagnostic("", "no-torch", message)])
    triton_api.require()


def _verdict(require: Callable[[], None]) -> str:
    try:
        require()
    except GemmgenError as error:
        return f"no: {error.diagnostics[0].message}"
    return "yes"


def _verdict_on(gpu: str, capability: int | None) -> str:
    targets = targets_of(capability)
    if not targets:
        known = architectures()
        makes = " or ".join(architecture.generation for architecture in known)
        capabilities = " or ".join(f"{architecture.compute_capability / 10}" for architecture in known)
        return f"no: needs a {makes} GPU (compute capability {capabilities}), found {gpu}"
    return f"yes, of specs for {' and '.join(targets)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch() -> Any:
    """Return torch, or in words why there is none."""
    try:
        import torch
    except ModuleNotFoundError:
        return "not installed"
    except (ImportError, OSError) as error:  # a library of CUDA is missing, say
        return f"cannot be imported: {error}"
    return torch


def _driver() -> str:
    """Return the version of NVIDIA's driver."""
    try:
        text = DRIVER.read_text(encoding="utf-8")
    except OSError:
        return "none"
    words = text.partition("Kernel Module")[2].split()
    return next((word for word in words if word[0].isdigit()), "unknown")


def _gpu(torch: Any) -> tuple[str, int | None]:
    """Return the current GPU's name and its compute capability, major * 10 + minor."""
    if isinstance(torch, str):
        return f"unknown (torch: {torch})", None
    if not torch.cuda.is_available():
        return "no GPU", None
    major, minor = cast("tuple[int, int]", torch.cuda.get_device_capability())
    return torch.cuda.get_device_name(), 10 * major + minor


# --- the GPU


def require_gpu(architecture: Architecture) -> torch.device:
    """Return the current GPU; raise GemmgenError (``no-gpu``) unless its compute capability is this one.

    The message names the products of the table of GPUs that have it.
    """
    import torch

    needed = divmod(architecture.compute_capability, 10)
    if not torch.cuda.is_available():
        found = "torch finds no CUDA GPU"
    elif (capability := torch.cuda.get_device_capability()) != needed:
        found = f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}"
    else:
        return torch.device("cuda", torch.cuda.current_device())
    products = ", ".join(name.upper() for name, gpu in GPUS.items() if gpu.architecture == architecture)
    needs = f"a {architecture.generation} GPU, compute capability {needed[0]}.{needed[1]} ({products})"
    raise GemmgenError([Diagnostic("", "no-gpu", f"{found}; the kernel needs {needs}")])


def context_lost() -> bool:
    """Return whether an earlier fault has made the CUDA context unusable: every later call would fail.

    Memory that does not suffice makes no context unusable.
    """
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return not is_out_of_memory(error)
    return False


OUT_OF_MEMORY: Final[Literal["out-of-memory"]] = "out-of-memory"
"""The code of a diagnostic that the memory of the GPU does not suffice, which is no fault of a kernel."""
MEMORY_TEXTS: Final = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of CUDA, of Triton's launcher and of cuBLAS in errors that have no type of their own for that."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error, or one that caused it, says that the memory of the GPU does not suffice."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in MEMORY_TEXTS):
            return True
        cause = cause.__cause__
    return False


def memory_text(error: BaseException, needed: int | None = None) -> str:
    """Return in words that the memory of the GPU does not suffice, with the bytes that are free, and of all.

    The bytes that are needed are told if they are known. The first line of the error follows, in which torch
    says how much it tried to allocate.
    """
    import torch

    said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    about = f"; about {gib(needed)} are needed" if needed else ""
    try:
        free, total = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError):  # no GPU, or one that is lost
        return f"the memory of the GPU does not suffice{about}: {said}"
    return f"the memory of the GPU does not suffice{about}, {gib(free)} of {gib(total)} are free: {said}"


def free_bytes(device: torch.device) -> int | None:
    """Return the free bytes of a GPU's memory, after torch has released unused memory; None for a CPU."""
    import torch

    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free


def gib(count: int) -> str:
    """Return a number of bytes in GiB, as text."""
    return f"{count / 2**30:.1f} GiB"


@contextmanager
def memory_faults(path: str, place: str = "", needed: int | None = None) -> Generator[None]:
    """Turn an error of memory that does not suffice into GemmgenError (``out-of-memory``), with its place."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = memory_text(error, needed)
        raise GemmgenError([Diagnostic(path, OUT_OF_MEMORY, message, field=place or None)]) from error


@contextmanager
def captured_graph() -> Generator[torch.cuda.CUDAGraph]:
    """Capture the launches of the context in a CUDA graph, which can be replayed after it.

    No garbage is collected meanwhile: Triton 3.9 unloads a kernel without references, which CUDA does
    not permit while a stream is captured; it would end the capture.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield graph
    finally:
        gc.enable()
