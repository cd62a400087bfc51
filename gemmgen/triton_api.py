"""The private names of Triton that compile and specialize kernels, and the one check of its version.

Other private names are in triton_launches and triton_errors.

Nothing is imported before it is needed: commands that do not compile work without Triton.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import ModuleType
from typing import Any, cast

from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.hardware import TRITON
from gemmgen.module import SOURCE

INSTALL = install_advice("compile")
"""How to install this release and a torch that works with it."""

COMPILER_ENVIRONMENT = {"TRITON_DUMP_PTXAS_LOG": "1"}
"""Makes the compiler print what ptxas reports, which it does only when it compiles and its cache is empty."""

CACHE_VARIABLE = "TRITON_CACHE_DIR"
"""The directory of Triton's compile cache."""

PTXAS_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
"""The paths of the assemblers that Triton runs for GPUs up to Hopper, and for those after it."""

WITHOUT_LINES = {"ptx_options": "-suppress-debug-info"}
"""The option by which ptxas leaves out lines of the source; values in Triton's IR keep their names."""

FUSION_VARIABLE = "TRITON_DEFAULT_FP_FUSION"
"""Triton warns when it is unset."""


# --- the version


def require() -> None:
    """Return if Triton is there in the supported release.

    Raises:
        GemmgenError: It is not (``no-triton``), or it is another release (``unknown-triton``).
    """
    version = found_version()
    if version is None:
        message = f"Triton is not installed, and this needs Triton {TRITON.name}: {INSTALL}"
        raise GemmgenError([Diagnostic("", "no-triton", message)])
    if not TRITON.has(version):
        message = f"found Triton {version}, and this needs Triton {TRITON.name}: {INSTALL}"
        raise GemmgenError([Diagnostic("", "unknown-triton", message)])


def found_version() -> str | None:
    """Return the version of the Triton that would be imported; None if there is no Triton."""
    loaded = sys.modules.get("triton")
    if loaded is not None:
        return cast(str, cast(Any, loaded).__version__)
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # another distribution may bring the package
        return cast(str, cast(Any, importlib.import_module("triton")).__version__)


# --- what the result of a compilation depends on beside the kernel

KNOBS = ("TRITON_", "MLIR_", "LLVM_", "NVPTX_", "PTXAS_", "DISABLE_", "ENABLE_", "ALLOW_", "USE_IR_LOC")
"""How the names of the environment variables begin that the compiler reads."""
HARMLESS_KNOBS = frozenset({CACHE_VARIABLE, "TRITON_HOME", "TRITON_PRINT_AUTOTUNING", FUSION_VARIABLE})
"""The variables among them that change no result here; the fusion of sums is in the key."""


def identity(library: Path) -> str | None:
    """Return a digest of the compiler in a directory; None if the environment changes its results.

    It covers the names, sizes and times of every file of the package: the compiler, its library in Python,
    and ptxas. With a variable of `KNOBS` set, results may differ in ways that no digest tells.
    """
    if any(name.startswith(KNOBS) and name not in HARMLESS_KNOBS for name in os.environ):
        return None
    return sha256(f"{_files(library)} {os.environ.get(FUSION_VARIABLE)} {sys.version}".encode()).hexdigest()


@cache
def _files(library: Path) -> str:
    digest = sha256()
    for directory, folders, names in os.walk(library):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            status = (Path(directory) / name).stat()
            digest.update(f"{directory}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def library_directory() -> Path:
    """Return the directory of the Triton that this process imports."""
    triton: Any = importlib.import_module("triton")
    return Path(triton.__file__).parent


def installed_directory() -> Path | None:
    """Return the directory of the Triton that this process would import."""
    spec = PathFinder.find_spec("triton", sys.path)
    return Path(spec.origin).parent if spec and spec.origin else None


def cuda_include() -> Path:
    """Return where Triton has the headers of the CUDA driver, which a launcher in C is compiled with."""
    return (installed_directory() or library_directory()) / "backends" / "nvidia" / "include"


@contextmanager
def assembled_by(ptxas: Path | None) -> Generator[None]:
    """Let Triton run another ptxas than its own; kernels are then compiled anew, past the cache.

    Raises:
        GemmgenError: The file is no ptxas (``no-ptxas``).
    """
    if ptxas is None:
        yield
        return
    try:
        told = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise GemmgenError([Diagnostic(ptxas.as_posix(), "no-ptxas", f"cannot be run: {error}")]) from error
    if "ptxas" not in told:
        raise GemmgenError([Diagnostic(ptxas.as_posix(), "no-ptxas", "is not the ptxas of a CUDA toolkit")])
    before = {name: os.environ.get(name) for name in PTXAS_VARIABLES}
    os.environ |= {name: str(ptxas.resolve()) for name in before}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def assembler_release(compute_capability: int) -> tuple[int, int]:
    """Return the release of CUDA whose ptxas Triton runs for a compute capability: (12, 9)."""
    from triton.backends.nvidia.compiler import get_ptxas  # pyright: ignore[reportMissingTypeStubs]

    major, minor = cast(Any, get_ptxas)(compute_capability).version.split(".")
    return int(major), int(minor)


_LOADING = Lock()


def load() -> None:
    """Import the compiler, and the torch that modules import: processes forked from now on have them."""
    with _LOADING:
        for name in ("torch", "triton", "triton.experimental.gluon", "triton.backends.compiler"):
            importlib.import_module(name)


# --- text to machine code

WARP_THREADS = 32
"""Threads of a warp of every GPU that is compiled for."""


@dataclass(frozen=True)
class Compiled:
    """The results of Triton's compiler for a kernel: text and code by stage, and the figures beside them."""

    stages: Mapping[str, bytes]
    """``ttgir``, ``llir``, ``ptx`` and ``cubin``."""
    smem_bytes: int
    warps: int
    tmem_columns: int
    entry: str
    """The name of the kernel in its PTX and its machine code."""
    cluster_ctas: int
    is_dependent: bool
    """True if it is launched with programmatic dependent launch."""
    scratch_bytes: int
    """Global memory that Triton's launcher allocates for each CTA, also of instrumented kernels."""


def compile_kernel(
    kernel: Any, signature: Mapping[str, str], compute_capability: int, options: Mapping[str, Any]
) -> Compiled:
    """Compile a kernel for argument types, without a GPU; Triton's own errors come out as they are.

    The machine code has no lines of the source, whose file has another place in each compilation. Entries of
    Triton's cache are taken for this release's: the cache must be new.
    """
    import triton  # pyright: ignore[reportMissingTypeStubs]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
    from triton.experimental.gluon import GluonASTSource  # pyright: ignore[reportMissingTypeStubs]

    source = GluonASTSource(kernel, dict(signature))
    target = GPUTarget("cuda", compute_capability, WARP_THREADS)
    # Triton names the entries of its cache by a digest of its whole library, half a gigabyte: a third of a
    # second, for a name that only the cache of this one compilation needs.
    with replaced([(importlib.import_module("triton.runtime.cache"), "triton_key", lambda: TRITON.name)]):
        compiled = cast(Any, triton).compile(source, target=target, options={**options, **WITHOUT_LINES})
    stages = {stage: cast(str, compiled.asm[stage]).encode() for stage in ("ttgir", "llir", "ptx")}
    stages["cubin"] = compiled.asm["cubin"]
    metadata = compiled.metadata
    # Kernels without tensor memory have no figure for it.
    tmem_columns = getattr(metadata, "tmem_size", None) or 0
    return Compiled(
        stages,
        metadata.shared,
        metadata.num_warps,
        tmem_columns,
        metadata.name,
        metadata.num_ctas,
        bool(metadata.launch_pdl),
        metadata.global_scratch_size + metadata.profile_scratch_size,
    )


def described(dtype: str, box: Sequence[int], layout: object) -> str:
    """Return the type of a TMA descriptor as a signature spells it."""
    return f"tensordesc<{dtype}[{','.join(map(str, box))}],{layout!r}>"


@dataclass(frozen=True)
class TensorMap:
    """The facts of a TMA descriptor's tensor that Triton tells the driver, beside its address and strides."""

    box: tuple[int, ...]
    """The elements that one instruction moves, the contiguous dimension last."""
    swizzle: int
    """The driver's number for it."""
    element_type: int
    """The driver's number for it, without the rounding to tf32 that a launch may add."""
    element_bytes: int
    pads_fp4: bool = False
    """True if the two 4-bit elements of a byte take two bytes in shared memory."""


def tensor_maps(ttgir: bytes) -> tuple[TensorMap, ...]:
    """Return the tensor maps of a kernel's descriptors, in order, as a launch by Triton would encode them."""
    ir, nvidia = binding("ir"), binding("nvidia")
    from triton.backends.nvidia.driver import (  # pyright: ignore[reportMissingTypeStubs]
        TMA_DTYPE_DEVICE_TO_HOST,  # pyright: ignore[reportUnknownVariableType]
    )

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.ttgir"
        path.write_bytes(ttgir)
        found: list[dict[str, Any]] = ir.parse_mlir_module(str(path), context).get_tensordesc_metadata()
    return tuple(
        TensorMap(
            tuple(each["block_size"]),
            each["swizzle"],
            cast(Any, TMA_DTYPE_DEVICE_TO_HOST)[each["elem_type"]],
            each["elem_size"],
            bool(each["fp4_padded"]),
        )
        for each in found
    )


def disassemble(cubin: bytes) -> bytes:
    """Return the SASS of a cubin."""
    from triton.tools import disasm  # pyright: ignore[reportMissingTypeStubs]

    text: str = cast(Any, disasm).get_sass(cubin)
    return text.encode()


# --- a launch's arguments to TTGIR in generic form


@dataclass(frozen=True)
class Terms:
    """The inputs of a compilation beside the kernel, in Triton's words: another process can have them too."""

    signature: Mapping[str, str]
    constexprs: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    target: Any
    options: Any


@dataclass(frozen=True)
class MachineCode:
    """The machine code of a launch's kernel, with all metadata of Triton's, which a program may read.

    `Compiled` has only the figures that plans are compared with.
    """

    asm: Mapping[str, Any]
    """By stage: ``ttgir``, ``llir``, ``ptx``, ``cubin``."""
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Specialized:
    """A kernel as a launch with certain arguments compiles it."""

    terms: Terms
    arguments: Mapping[str, Any]
    """The values of the run-time parameters, by name."""
    bound: Mapping[str, Any]
    """The values of all parameters, by name."""
    _kernel: Any

    @property
    def kernel_file(self) -> Path | None:
        """The file of the kernel's function; None for one that comes from a console."""
        import inspect

        try:
            path = inspect.getsourcefile(self._kernel.fn)
        except TypeError:
            return None
        return Path(path) if path else None

    @property
    def generated_module(self) -> tuple[Path, str] | None:
        """The file and the text of the module that `import_generated` has made; None for any other kernel."""
        names: dict[str, Any] = self._kernel.fn.__globals__
        of_module = names.get(self._kernel.__name__) is self._kernel
        return (Path(names["__file__"]), names[SOURCE]) if of_module and SOURCE in names else None

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self._kernel.__name__

    @property
    def _source(self) -> Any:
        from triton.experimental.gluon import GluonASTSource  # pyright: ignore[reportMissingTypeStubs]

        terms = self.terms
        return GluonASTSource(
            self._kernel, dict(terms.signature), dict(terms.constexprs), dict(terms.attributes)
        )

    def digest(self) -> str | None:
        """Return what Triton's own cache would tell kernels, argument types and options apart by.

        None if Triton cannot tell: then it refuses the kernel too, in its own words.
        """
        try:
            return f"{self._source.hash()} {self.terms.options.hash()} {self.terms.target}"
        except Exception:  # the visitor of a wrong kernel can raise anything, and the compiler says it better
            return None

    def machine_code(self) -> MachineCode:
        """Return the texts and the code of every stage, and the metadata, as a launch has them.

        Triton's own errors come out as they are, and some illegal kernels abort the process.
        """
        import triton  # pyright: ignore[reportMissingTypeStubs]

        options = vars(cast(object, self.terms.options))
        compiled = cast(Any, triton).compile(self._source, target=self.terms.target, options=dict(options))
        metadata: dict[str, Any] = compiled.metadata._asdict()
        stages = ("ttgir", "llir", "ptx", "cubin")
        return MachineCode({stage: compiled.asm[stage] for stage in stages}, metadata)

    def generic_ttgir(self) -> str:
        """Return the kernel's TTGIR in MLIR's generic form, after the allocation of memory and warps.

        Triton's own errors come out as they are, and some illegal kernels abort the process.
        """
        ir, nvidia, passes = (binding(name) for name in ("ir", "nvidia", "passes"))
        from triton.backends.nvidia.compiler import (  # pyright: ignore[reportMissingTypeStubs]
            get_ptx_version_from_options,  # pyright: ignore[reportUnknownVariableType]
        )
        from triton.compiler.compiler import make_backend  # pyright: ignore[reportMissingTypeStubs]

        target, options = self.terms.target, self.terms.options
        backend: Any = cast(Any, make_backend)(target)
        capability = target.arch
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(options)
        module = self._source.make_ir(target, options, functions, backend.get_module_map(), context)
        module = backend.gluon_to_ttgir(module, {}, options, capability)
        manager = ir.pass_manager(context)
        manager.enable_debug()  # keeps the names of values
        passes.ttgpuir.add_combine_tensor_select_and_if(manager)
        passes.ttgpuir.add_allocate_warp_groups(manager, False)
        # Not in Triton's order, which lowers scf first: structured control flow is easier to run, and
        # allocation works on either.
        passes.gluon.add_inliner(manager)
        ptx_version = cast(Any, get_ptx_version_from_options)(options, target.arch)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, capability, ptx_version)
        nvidia.passes.ttnvgpuir.add_allocate_tensor_memory(manager)
        if options.num_ctas > 1:
            # Inserts the barriers that the compiled kernel has between the CTAs of a cluster: at its start,
            # at its end, and where shared memory is reused across CTAs. Within one CTA it inserts barriers of
            # a partition's own warps, which the simulator runs as one, and it takes most of the time.
            nvidia.passes.ttgpuir.add_membar(manager, capability, ptx_version)
        manager.run(module, "allocate")
        # A module that fails verification prints in generic form; this attribute must be a string.
        module.set_attr("llvm.data_layout", ir.builder(context).get_int32_attr(0))
        return module.str()


def is_gluon(value: Any) -> bool:
    """Return True if a value is a function that ``@gluon.jit`` decorates."""
    return callable(getattr(value, "is_gluon", None)) and value.is_gluon()


def specialize(
    kernel: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    compute_capability: int,
    threads_per_warp: int,
) -> Specialized:
    """Bind a launch's arguments to a kernel, and choose the types and attributes that a launch would.

    `keywords` are arguments by name and options; a name that is both, as ``num_warps`` can be, is both.

    Raises:
        GemmgenError: There is no such kernel, or it does not take these arguments (``bad-launch``).
    """
    # Nothing here depends on it: no PTX is made.
    os.environ.setdefault(FUSION_VARIABLE, "1")
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
    from triton.compiler.compiler import make_backend  # pyright: ignore[reportMissingTypeStubs]
    from triton.runtime.jit import (  # pyright: ignore[reportMissingTypeStubs]
        create_function_from_signature,  # pyright: ignore[reportUnknownVariableType]
    )

    name = getattr(kernel, "__name__", repr(kernel))
    if not is_gluon(kernel):
        raise bad_launch(name, "it is no kernel: simulate what `@gluon.jit` decorates")
    target = GPUTarget("cuda", compute_capability, threads_per_warp)
    backend: Any = cast(Any, make_backend)(target)
    binder: Any = cast(Any, create_function_from_signature)(kernel.signature, kernel.params, backend)
    try:
        bound, specialization, extra = binder(*args, **keywords)
        parsed, signature, constexprs, attrs = kernel._pack_args(
            backend, dict(keywords), bound, specialization, extra
        )
    except Exception as error:  # whatever a launch would raise: it is about the arguments
        told = str(error.args[0]) if error.args else ""
        told = " ".join(told.replace("dynamic_func()", f"{name}()").split())
        raise bad_launch(name, f"{told or type(error).__name__}") from error
    runtime = {name: value for name, value in bound.items() if signature[name] != "constexpr"}
    return Specialized(Terms(signature, constexprs, attrs, target, parsed), runtime, bound, kernel)


def specialized_as(kernel: Any, terms: Terms) -> Specialized:
    """Return a kernel as another process has specialized it, without the values of arguments."""
    return Specialized(terms, {}, {}, kernel)


def bad_launch(kernel: str, message: str) -> GemmgenError:
    """Return the error of a launch that cannot be simulated (``bad-launch``)."""
    return GemmgenError([Diagnostic(kernel, "bad-launch", message)])


# --- attributes and bindings


@contextmanager
def replaced(changes: Sequence[tuple[Any, str, Any]]) -> Generator[None]:
    """Set attributes, and restore their values afterwards."""
    missing = object()
    before: list[tuple[Any, str, Any]] = [
        (owner, name, cast("dict[str, Any]", vars(owner)).get(name, missing)) for owner, name, _ in changes
    ]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def binding(name: str) -> Any:
    """Return a part of the compiler's Python bindings."""
    library: ModuleType = importlib.import_module("triton._C.libtriton")
    return getattr(library, name)
