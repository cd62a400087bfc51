"""Launches compiled kernels by the CUDA driver's documented API, without Triton.

gemmgen writes this file beside gemmgen_launch.py, which checks tensors. A kernel's machine code comes from a
pack (`Kernel`), or from Triton in this process (`facts_of_compiled`). Then both take one path. A `Launch` has
the parameters of a kernel in memory of its own: tensor maps (cuTensorMapEncodeTiled), pointers and numbers.
It is launched any number of times (cuLaunchKernelEx), with other addresses if they are put in
(cuTensorMapReplaceAddress).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import json
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

FORMAT = 1  # of the file with the facts of a module's kernels
TF32 = 11  # [cuda] CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: TMA rounds fp32 as it loads them


def find_private(path: str, default: Any = None) -> Any:
    """Return the object with this dotted name, or the default if this release of torch or Triton lacks it."""
    first, *names = path.split(".")
    found: Any = importlib.import_module(first)
    for name in names:
        found = getattr(found, name, None)
    return default if found is None else found


# The one private name of torch; builds for the CPU lack it.
current_stream: Callable[[int], int] = find_private(
    "torch._C._cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)


class DriverError(RuntimeError):
    """The driver cannot be used, or reports an error."""


class PackError(DriverError):
    """A pack cannot run here: a file is missing or changed, or the driver is too old."""


# --- the driver

POINTER, INT, UNSIGNED = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuGetErrorString": (INT, POINTER),
    "cuDriverGetVersion": (POINTER,),
    "cuCtxGetDevice": (POINTER,),
    "cuCtxSetCurrent": (POINTER,),
    "cuDevicePrimaryCtxRetain": (POINTER, INT),
    "cuThreadExchangeStreamCaptureMode": (POINTER,),
    "cuModuleLoadData": (POINTER, POINTER),
    "cuModuleGetFunction": (POINTER, POINTER, POINTER),
    "cuFuncSetAttribute": (POINTER, INT, INT),
    "cuFuncSetCacheConfig": (POINTER, INT),
    "cuTensorMapEncodeTiled": (POINTER, INT, UNSIGNED, *(POINTER,) * 5, INT, INT, INT, INT),
    "cuTensorMapReplaceAddress": (POINTER, POINTER),
    "cuLaunchKernelEx": (POINTER,) * 4,
}
"""The driver's functions that are called, with the types of their parameters."""
CAPTURE_INFO = "cuStreamGetCaptureInfo_v2"  # drivers for CUDA 11.3 to 13 have it
CAPTURING = 1  # [cuda] CU_STREAM_CAPTURE_STATUS_ACTIVE


def open_library() -> Any:
    """Return the driver's library, whose functions keep Python's lock: it is not worth its release."""
    try:
        return ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"libcuda.so.1 cannot be loaded: {error}") from error


class Driver:
    """The functions of the driver: each raises DriverError if the driver reports an error."""

    def __init__(self, library: Any) -> None:
        """Find all functions; raises DriverError if the driver lacks one."""
        self.functions: dict[str, Any] = {}
        for name, types in FUNCTIONS.items():
            if (function := getattr(library, name, None)) is None:
                raise DriverError(f"libcuda.so.1 has no {name}: install a newer driver")
            function.argtypes = types
            self.functions[name] = function
        # Calls like earlier ones need these two alone, and look at the results themselves.
        self.replace_address = self.functions["cuTensorMapReplaceAddress"]
        self.launch = self.functions["cuLaunchKernelEx"]
        if (capture_info := getattr(library, CAPTURE_INFO, None)) is not None:
            capture_info.argtypes = (POINTER,) * 6
        self.capture_info = capture_info
        version = INT()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value  # 12080 for CUDA 12.8

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name."""
        self.check(name, self.functions[name](*arguments))

    def check(self, name: str, result: int) -> None:
        """Raise DriverError, with the driver's words, unless a result is a success."""
        if result:
            text = ctypes.c_char_p()
            unknown = self.functions["cuGetErrorString"](result, ctypes.byref(text)) or not text.value
            words = "an error that it has no text for" if unknown else (text.value or b"").decode()
            raise DriverError(f"{name}: the driver reports {result}, {words}")

    def capture_of(self, stream: int) -> int | None:
        """Return the number of the capture that a stream is in, which no other capture of the process has.

        It is None if no graph captures the stream, or if the driver does not tell the number.
        """
        status, number = INT(), ctypes.c_uint64()
        places = ctypes.byref(status), ctypes.byref(number)
        if self.capture_info is None or self.capture_info(stream, *places, None, None, None):
            return None
        return number.value if status.value == CAPTURING else None

    def make_context(self, device: int) -> None:
        """Let this thread have the context of a GPU that torch uses, if it has none or another one."""
        current = INT(-1)
        has_none = self.functions["cuCtxGetDevice"](ctypes.byref(current))
        if has_none or current.value != device:
            context = POINTER()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)


@functools.cache
def driver() -> Driver:
    """Return the driver, which is opened when the first kernel is launched."""
    return Driver(open_library())


# --- facts of compiled kernels


class TensorMap(NamedTuple):
    """A descriptor of TMA as the kernel was compiled for it."""

    box: tuple[int, ...]
    """Elements that one instruction moves; the contiguous dimension last."""
    swizzle: int
    """[cuda] The driver's number."""
    element_type: int
    """[cuda] The driver's number."""
    element_bytes: int
    pads_fp4: bool
    """True if TMA writes the two elements of a byte into two bytes."""


class Passed(NamedTuple):
    """An argument of a kernel."""

    name: str
    kind: str
    """``map``, ``pointer``, ``i32``, ``i64``, or ``constexpr``, which is no parameter."""
    map: TensorMap | None


class Facts(NamedTuple):
    """A compiled kernel."""

    entry: str
    threads: int
    smem_bytes: int
    cluster_ctas: int
    is_dependent: bool
    """True if it may start before the kernel ahead of it in the stream ends (PDL)."""
    scratch_bytes: int
    arguments: tuple[Passed, ...]
    cubin: str = ""
    """The name of the file beside the facts; empty for a kernel that Triton has compiled."""
    sha256: str = ""
    driver: int = 0
    """The oldest driver that loads the cubin, as cuDriverGetVersion counts."""


def read_facts(path: Path) -> dict[str, Facts]:
    """Return the facts of a module's kernels by their names.

    Raises PackError if the file is missing, is cut, or has another format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            found = f"format {document['format']!r}, and this launcher reads format {FORMAT}"
            raise PackError(f"{path} has {found}: install the pack again")
        return {name: facts_of(kernel) for name, kernel in document["kernels"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PackError(f"{path} has no facts of kernels, {error!r}: install the pack again") from error


def facts_of(kernel: dict[str, Any]) -> Facts:
    """Return the facts of a kernel as JSON has them."""
    arguments = tuple(
        Passed(
            each["name"],
            each["kind"],
            each["map"] and TensorMap(tuple(each["map"].pop("box")), **each["map"]),
        )
        for each in kernel.pop("arguments")
    )
    return Facts(**kernel, arguments=arguments)


def facts_of_compiled(kernel: Any) -> Facts | None:
    """Return the facts of a kernel that Triton has compiled in this process, and loaded.

    None if Triton has to launch it: kernels that take memory of its own, or are instrumented. Raises
    AttributeError, LookupError or TypeError if this release of Triton has other names.
    """
    nvidia, run = find_private("triton.backends.nvidia.driver"), getattr(kernel, "run", None)
    if type(run) is not nvidia.CudaLauncher or run.gsan_enabled or run.launch_cooperative_grid:
        return None
    if run.global_scratch_size or run.profile_scratch_size:
        return None
    metadata = kernel.metadata
    maps = iter(getattr(metadata, "tensordesc_meta", None) or ())

    def passed(name: str, spelled: str) -> Passed:
        if spelled.startswith("tensordesc"):
            found = next(maps)
            element_type = nvidia.TMA_DTYPE_DEVICE_TO_HOST[found["elem_type"]]
            sizes = tuple(found["block_size"]), found["swizzle"], element_type, found["elem_size"]
            return Passed(name, "map", TensorMap(*sizes, bool(found["fp4_padded"])))
        if spelled.startswith("*"):
            return Passed(name, "pointer", None)
        return Passed(name, {"i32": "i32", "constexpr": "constexpr"}.get(spelled, "i64"), None)

    arguments = [passed(str(name), spelled) for name, spelled in kernel.src.signature.items()]
    return Facts(
        metadata.name,
        32 * metadata.num_warps,
        metadata.shared,
        metadata.num_ctas,
        bool(run.launch_pdl),
        scratch_bytes=0,
        arguments=tuple(arguments),
    )


# --- names of Triton that a module's host side has


class Constant(NamedTuple):
    """A constant of a kernel, as a module names it."""

    value: Any


def cdiv(amount: int, by: int) -> int:
    """Return a quotient, rounded up."""
    return -(-amount // by)


class TensorDescriptor:
    """The place of a tensor, as a kernel's TMA descriptor is to have it, with Triton's constructors."""

    def __init__(
        self,
        base: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],  # noqa: ARG002 - the facts have the box
        layout: None = None,  # noqa: ARG002 - the facts have the swizzle
        *,
        round_f32_to_tf32: bool = False,
    ) -> None:
        """Describe memory that `base` has the address of; sizes and strides are in elements."""
        self.base, self.shape, self.strides = base, [*shape], [*strides]
        self.round_f32_to_tf32 = round_f32_to_tf32

    @classmethod
    def from_tensor(
        cls, tensor: Tensor, block_shape: Sequence[int], layout: None = None, **options: bool
    ) -> TensorDescriptor:
        """Describe a tensor as it is."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape, layout, **options)


# --- kernels and their launches


class Config(ctypes.Structure):
    """[cuda] CUlaunchConfig."""

    _fields_ = (
        *((name, UNSIGNED) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("smem_bytes", UNSIGNED),
        ("stream", POINTER),
        ("attributes", POINTER),
        ("attribute_count", UNSIGNED),
    )


class Attribute(ctypes.Structure):
    """[cuda] CUlaunchAttribute: its number, and a union of 64 bytes."""

    _fields_ = (("number", INT), ("_", INT), ("values", UNSIGNED * 16))


CLUSTER_DIMENSION, CLUSTER_SCHEDULING_POLICY, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 5, 6
SPREAD = 1  # a scheduling policy: CTAs of a cluster on different SMs


class Address(NamedTuple):
    """The place in a launch's parameters that has the address of a tensor."""

    map: int | None
    """The address of the tensor map with it; None for a pointer."""
    pointer: ctypes.c_uint64 | None
    """The pointer; None for a map."""
    address: int
    """The address when the parameters were made."""
    base: int
    """The address of the tensor that was described: a map may begin ahead of it."""


class Launch:
    """A launch of a kernel: its parameters in memory of their own, its grid and its attributes."""

    def __init__(self, function: Any, facts: Facts, grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
        """Encode all tensor maps and write all parameters; nothing is launched."""
        self.api, self.function, self.addresses = driver(), function, list[Address]()
        self.held: list[Any] = []  # the memory that the addresses below are of
        places: list[int] = []
        for passed, argument in zip(facts.arguments, arguments, strict=True):
            places += self.write(passed, argument)
        scratch = self.keep(ctypes.c_uint64(0))  # Triton's scratch memory, which no packed kernel uses
        self.parameters = self.keep((POINTER * (len(places) + 2))(*places, scratch, scratch))
        self.attributes = (Attribute * 3)()
        count = self.set_attributes(facts)
        ctas = facts.cluster_ctas
        self.config = Config(
            grid[0] * ctas, *grid[1:], facts.threads, 1, 1, facts.smem_bytes, None, None, count
        )
        self.config.attributes = ctypes.addressof(self.attributes)
        self.configuration = self.keep(self.config)

    def keep(self, value: Any) -> int:
        """Keep a value alive, and return its address."""
        self.held.append(value)
        return ctypes.addressof(value)

    def write(self, passed: Passed, argument: Any) -> list[int]:
        """Write the parameters of an argument, and return the address of each."""
        if passed.kind == "pointer":
            pointer = ctypes.c_uint64(argument.data_ptr())
            self.addresses.append(Address(None, pointer, pointer.value, pointer.value))
            return [self.keep(pointer)]
        if passed.kind == "constexpr":
            return []
        if passed.map is None:
            return [self.keep((ctypes.c_int32 if passed.kind == "i32" else ctypes.c_int64)(argument))]
        base, place = argument.base, self.encode(passed.map, argument)
        of_tensor = getattr(base, "tensor", base).data_ptr()
        self.addresses.append(Address(place, None, base.data_ptr(), of_tensor))
        extents = [self.keep(ctypes.c_int32(extent)) for extent in argument.shape]
        return [place, *extents, *[self.keep(ctypes.c_int64(stride)) for stride in argument.strides]]

    def encode(self, compiled: TensorMap, described: Any) -> int:
        """Make the tensor map of a descriptor, and return its address.

        The driver counts dimensions from the contiguous one.
        """
        # [cuda] cuda.h aligns maps to 64 or 128 bytes.
        memory = ctypes.create_string_buffer(2 * 128)
        place = -(-self.keep(memory) // 128) * 128
        extents, rank = described.shape[::-1], len(compiled.box)
        if compiled.pads_fp4:  # two elements a byte
            extents[0] *= 2
        strides = [stride * compiled.element_bytes for stride in described.strides[-2::-1]]
        self.api.call(
            "cuTensorMapEncodeTiled",
            place,
            TF32 if described.round_f32_to_tf32 else compiled.element_type,
            rank,
            described.base.data_ptr(),
            (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*compiled.box[::-1]),
            (ctypes.c_uint32 * rank)(*(1,) * rank),
            0,  # no interleaving
            compiled.swizzle,
            2,  # promotion to 128 bytes of L2
            0,  # zeros out of bounds
        )
        # Drivers up to CUDA 13.1 set a bit that is wrong for tensors of less than 128 KiB; CUTLASS and Triton
        # clear it.
        steps = compiled.element_bytes, *strides
        span = sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True))
        if self.api.version <= 13010 and span + 1 < 128 * 1024:
            word = ctypes.c_uint64.from_address(place + 8)
            word.value &= ~(1 << 21)
        return place

    def set_attributes(self, facts: Facts) -> int:
        """Write the attributes of the launch, and return their number."""
        attributes: list[tuple[int, tuple[int, ...]]] = []
        if facts.is_dependent:
            attributes.append((PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
        if facts.cluster_ctas > 1:
            attributes.append((CLUSTER_DIMENSION, (facts.cluster_ctas, 1, 1)))
            attributes.append((CLUSTER_SCHEDULING_POLICY, (SPREAD,)))
        for attribute, (number, values) in zip(self.attributes, attributes, strict=False):
            attribute.number = number
            attribute.values[: len(values)] = values
        return len(attributes)

    def start(self, stream: int) -> None:
        """Launch on a stream; raises DriverError if the driver refuses."""
        self.config.stream = stream
        if result := self.api.launch(self.configuration, self.function, self.parameters, None):
            self.api.check("cuLaunchKernelEx", result)


class Kernel:
    """A compiled kernel of a pack, called as Triton's are: ``kernel[grid](*arguments)``."""

    def __init__(self, facts_file: Path, name: str) -> None:
        """Name the kernel; its files are read when it is first launched."""
        self.facts_file, self.name = facts_file, name
        self.lock, self.functions = threading.Lock(), dict[int, Any]()

    @functools.cached_property
    def facts(self) -> Facts:
        """The facts of the kernel."""
        kernels = read_facts(self.facts_file)
        if self.name not in kernels:
            raise PackError(f"{self.facts_file} has no facts of {self.name}: install the pack again")
        return kernels[self.name]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Launch]:
        """Return the function that launches the kernel with a grid of programs on the current stream."""

        def launch(*arguments: Any, **_options: Any) -> Launch:
            device = torch.cuda.current_device()
            made = Launch(self.function_on(device), self.facts, grid, arguments)
            made.start(current_stream(device))
            return made

        return launch

    def function_on(self, device: int) -> Any:
        """Return the driver's function on a GPU; the first call for it loads the machine code."""
        with self.lock:
            if device not in self.functions:
                self.functions[device] = self.load()
            return self.functions[device]

    def load(self) -> Any:
        """Load the machine code into the current context, also while a stream is captured.

        Raises PackError if the file is not the one that the facts are of, or the driver is too old.
        """
        facts, api = self.facts, driver()
        if facts.scratch_bytes:
            raise PackError(f"{self.name} needs scratch memory of Triton, which a pack does not have")
        cubin = read_cubin(self.facts_file.with_name(facts.cubin), facts.sha256)
        if api.version < facts.driver:
            wanted, found = (f"{each // 1000}.{each % 1000 // 10}" for each in (facts.driver, api.version))
            raise PackError(
                f"{facts.cubin} needs a driver for CUDA {wanted} or newer, found one for {found}: install a "
                "newer driver, or make the pack with --ptxas of an older CUDA"
            )
        module, function = POINTER(), POINTER()
        with relaxed_capture(api):
            api.call("cuModuleLoadData", ctypes.byref(module), cubin)
            api.call("cuModuleGetFunction", ctypes.byref(function), module, facts.entry.encode())
            if facts.smem_bytes > 48 * 1024:  # [cuda] more only on request
                api.call("cuFuncSetCacheConfig", function, 1)  # shared memory rather than L1
                api.call("cuFuncSetAttribute", function, 8, facts.smem_bytes)  # the most dynamic bytes
            if facts.cluster_ctas > 8:  # [cuda] likewise
                api.call("cuFuncSetAttribute", function, 14, 1)  # a size that not every GPU has
        return function


def read_cubin(path: Path, sha256: str) -> bytes:
    """Return the machine code in a file; raises PackError unless it has the digest."""
    try:
        cubin = path.read_bytes()
    except OSError as error:
        raise PackError(f"{path} cannot be read, {error.strerror}: install the pack again") from error
    if hashlib.sha256(cubin).hexdigest() != sha256:
        raise PackError(f"{path} is not the machine code that this pack was made with: install it again")
    return cubin


@contextlib.contextmanager
def relaxed_capture(api: Driver) -> Generator[None]:
    """Allow this thread to load a module while it captures a graph: that queues nothing on a stream."""
    mode = INT(2)  # [cuda] CU_STREAM_CAPTURE_MODE_RELAXED
    api.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        api.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
