"""Launches compiled kernels by the CUDA driver's documented API: the launcher of a pack.

`gemmgen pack` writes this file beside kernels that are compiled already, and beside gemmgen_launch.py, which
checks tensors and registers operators. It needs torch, and neither Triton nor gemmgen. A packed module makes
one `DriverHost`, and its `matmul` calls that:

1. `DriverHost.run` looks for the parameters of a call like this one: with the same sizes, strides and types,
   on the same device, in the same thread. No address is part of that key.
2. If there are some, it puts the addresses of this call into them (cuTensorMapReplaceAddress), and launches
   (cuLaunchKernelEx).
3. If there are none, `Host.run_checked` checks the call and lets the module launch: each `Kernel` is loaded
   when it is first needed, encodes its tensor maps (cuTensorMapEncodeTiled), and launches. The parameters are
   kept for step 2.

Parameters belong to one thread, so that no other thread changes an address before the launch. The driver
copies them before cuLaunchKernelEx returns, so that a captured graph has its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

if __package__:
    from .gemmgen_launch import Checked, Host, Place, find_private, in_transform, is_captured, overlap
else:
    from gemmgen_launch import Checked, Host, Place, find_private, in_transform, is_captured, overlap

SUMS = ("partials", "counters")  # names of memory for partial sums among a kernel's arguments
FORMAT = 1  # of the file with the facts of a module's kernels
MAX_KEPT = 4096  # calls whose parameters a module keeps for a thread; then it starts anew
TF32 = 11  # [cuda] CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: TMA rounds fp32 as it loads them

# The one private name of torch; builds for the CPU lack it.
current_stream: Callable[[int], int] = find_private(
    "torch._C._cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)


class PackError(RuntimeError):
    """A pack cannot run here: a file is missing or changed, or the driver is too old or reports an error."""


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


def open_library() -> Any:
    """Return the driver's library, whose functions keep Python's lock: it is not worth its release."""
    try:
        return ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise PackError(f"libcuda.so.1 cannot be loaded: {error}") from error


class Driver:
    """The functions of the driver: each raises PackError if the driver reports an error."""

    def __init__(self, library: Any) -> None:
        """Find all functions; raises PackError if the driver lacks one."""
        self.functions: dict[str, Any] = {}
        for name, types in FUNCTIONS.items():
            if (function := getattr(library, name, None)) is None:
                raise PackError(f"libcuda.so.1 has no {name}: install a newer driver")
            function.argtypes = types
            self.functions[name] = function
        # A call like an earlier one calls these two, and looks at their results itself.
        self.replace_address = self.functions["cuTensorMapReplaceAddress"]
        self.launch = self.functions["cuLaunchKernelEx"]
        version = INT()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value  # 12080 for CUDA 12.8

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name."""
        self.check(name, self.functions[name](*arguments))

    def check(self, name: str, result: int) -> None:
        """Raise PackError, with the driver's words, unless a result is a success."""
        if result:
            text = ctypes.c_char_p()
            unknown = self.functions["cuGetErrorString"](result, ctypes.byref(text)) or not text.value
            words = "an error that it has no text for" if unknown else (text.value or b"").decode()
            raise PackError(f"{name}: the driver reports {result}, {words}")

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
    """``map``, ``pointer``, ``i32`` or ``i64``."""
    tensor: str | None
    """The tensor whose address it has, by its name in ARGUMENTS or in a workspace."""
    map: TensorMap | None


class Facts(NamedTuple):
    """A compiled kernel."""

    entry: str
    cubin: str
    """The name of the file beside the facts."""
    sha256: str
    threads: int
    smem_bytes: int
    cluster_ctas: int
    is_dependent: bool
    """True if it may start before the kernel ahead of it in the stream ends (PDL)."""
    scratch_bytes: int
    driver: int
    """The oldest driver that loads the cubin, as cuDriverGetVersion counts."""
    arguments: tuple[Passed, ...]


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
            each["tensor"],
            each["map"] and TensorMap(tuple(each["map"].pop("box")), **each["map"]),
        )
        for each in kernel.pop("arguments")
    )
    return Facts(**kernel, arguments=arguments)


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
        self.rounds = round_f32_to_tf32

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

    tensor: str
    map: POINTER | None
    """The tensor map with the address; None for a pointer."""
    pointer: ctypes.c_uint64
    """The pointer; of a map it is unused."""
    address: int
    """The address when the parameters were made."""


class Launch:
    """A launch of a kernel: its parameters in memory of their own, its grid and its attributes."""

    def __init__(self, function: Any, facts: Facts, grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
        """Encode all tensor maps and write all parameters; nothing is launched."""
        self.function, self.addresses = function, list[Address]()
        self.held: list[Any] = []  # the memory that the addresses below are of
        places: list[int] = []
        for passed, argument in zip(facts.arguments, arguments, strict=True):
            places += self.write(passed, argument)
        scratch = self.keep(ctypes.c_uint64(0))  # Triton's scratch memory, which no packed kernel uses
        self.parameters = (POINTER * (len(places) + 2))(*places, scratch, scratch)
        self.attributes = (Attribute * 3)()
        count = self.set_attributes(facts)
        ctas = facts.cluster_ctas
        self.config = Config(
            grid[0] * ctas, *grid[1:], facts.threads, 1, 1, facts.smem_bytes, None, None, count
        )
        self.config.attributes = ctypes.addressof(self.attributes)
        self.configuration = ctypes.byref(self.config)

    def keep(self, value: Any) -> int:
        """Keep a value alive, and return its address."""
        self.held.append(value)
        return ctypes.addressof(value)

    def write(self, passed: Passed, argument: Any) -> list[int]:
        """Write the parameters of an argument, and return the address of each."""
        if passed.kind == "pointer":
            pointer = ctypes.c_uint64(argument.data_ptr())
            self.addresses.append(Address(str(passed.tensor), None, pointer, pointer.value))
            return [self.keep(pointer)]
        if passed.map is None:
            return [self.keep((ctypes.c_int32 if passed.kind == "i32" else ctypes.c_int64)(argument))]
        address, place = argument.base.data_ptr(), self.encode(passed.map, argument)
        self.addresses.append(Address(str(passed.tensor), POINTER(place), ctypes.c_uint64(), address))
        extents = [self.keep(ctypes.c_int32(extent)) for extent in argument.shape]
        return [place, *extents, *[self.keep(ctypes.c_int64(stride)) for stride in argument.strides]]

    def encode(self, compiled: TensorMap, described: TensorDescriptor) -> int:
        """Make a tensor map, and return its address: the driver counts dimensions from the contiguous one."""
        # [cuda] cuda.h aligns maps to 64 or 128 bytes.
        memory = ctypes.create_string_buffer(2 * 128)
        place = -(-self.keep(memory) // 128) * 128
        extents, rank = described.shape[::-1], len(compiled.box)
        if compiled.pads_fp4:  # two elements a byte
            extents[0] *= 2
        strides = [stride * compiled.element_bytes for stride in described.strides[-2::-1]]
        driver().call(
            "cuTensorMapEncodeTiled",
            place,
            TF32 if described.rounds else compiled.element_type,
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
        if driver().version <= 13010 and span + 1 < 128 * 1024:
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
        """Launch on a stream; raises PackError if the driver refuses."""
        self.config.stream = stream
        result = driver().launch(self.configuration, self.function, self.parameters, None)
        driver().check("cuLaunchKernelEx", result)


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


# --- calls


class Apart(NamedTuple):
    """A tensor that the kernel writes, and another tensor of the call that must share no memory with it."""

    written: int
    """Its number among the tensors of the call."""
    other: int
    written_bytes: int
    """From its first byte to its last one."""
    other_bytes: int
    places: tuple[Place, Place]
    """The rows of both, at address 0."""
    may_be_same: bool
    """True if both may lie at the same address: C and D."""

    def collide(self, written: int, other: int) -> bool:
        """Return True if the tensors share memory at these addresses, and must not."""
        if written == other and self.may_be_same:
            return False
        of_written, of_other = self.places
        return overlap(of_written._replace(address=written), of_other._replace(address=other))


@dataclasses.dataclass
class Ready:
    """The launches of a call whose parameters lie ready, for later calls of the same thread."""

    launches: list[Launch]
    maps: list[tuple[Any, int, int]]
    """Tensor maps, each with the number of its tensor and the bytes from its address to the map's."""
    pointers: list[tuple[Any, int, int]]
    """Pointers, likewise."""
    unaligned: list[int]
    """For each tensor that the caller passes, the bits of its address that must be 0."""
    apart: list[Apart]
    new_d: Callable[[], Tensor]
    """Makes a D for a call without `out`."""
    extents: tuple[int, ...]
    """The extents of memory for partial sums; empty if the kernel needs none, or the caller passes it."""
    is_in_use: bool = False
    """True while a call is under way: a second one of the thread, in a signal's handler, takes others."""

    def takes(self, addresses: Sequence[int]) -> bool:
        """Return True if the tensors of a call lie where the kernel can use them, and it is not in use."""
        for address, bits in zip(addresses, self.unaligned, strict=True):
            if address & bits or not address:
                return False
        for pair in self.apart:
            written, other = addresses[pair.written], addresses[pair.other]
            # Most tensors lie far apart; rows that interleave are compared one by one.
            is_apart = written + pair.written_bytes <= other or other + pair.other_bytes <= written
            if not is_apart and pair.collide(written, other):
                return False
        return not self.is_in_use

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """Launch for tensors at these addresses; raises PackError if the driver refuses."""
        api = driver()
        self.is_in_use = True
        for place, tensor, offset in self.maps:
            if result := api.replace_address(place, addresses[tensor] + offset):
                api.check("cuTensorMapReplaceAddress", result)
        for pointer, tensor, offset in self.pointers:
            pointer.value = addresses[tensor] + offset
        for launch in self.launches:
            launch.start(stream)
        self.is_in_use = False


class OfThread(threading.local):
    """The parameters that a module keeps for one thread."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.ready: dict[Any, Ready] = {}


class DriverHost(Host):
    """The host side of one packed module."""

    def start_keeping(self) -> None:
        """Keep no launch yet."""
        self.of_thread = OfThread()

    @contextlib.contextmanager
    def launching(self, device: torch.device) -> Generator[None]:
        """Let this thread launch kernels on a GPU, with a CUDA context."""
        with torch.cuda.device(device.index):
            driver().make_context(device.index)
            yield

    def run(self, *inputs: Tensor, out: Tensor | None = None, workspace: tuple[Tensor, ...] = ()) -> Tensor:
        """Launch with the parameters of an earlier call like this one; check and prepare any other call."""
        tensors = (*inputs, *workspace) if out is None else (*inputs, *workspace, out)
        key = self.key_of(tensors, out)
        ready = self.of_thread.ready.get(key) if key else None
        if ready is None:
            return self.run_checked(inputs, out, workspace, key)
        addresses = [tensor.data_ptr() for tensor in tensors]
        if not ready.takes(addresses):
            return self.run_checked(inputs, out, workspace, None)
        device = inputs[0].get_device()
        stream = current_stream(device)
        if out is None:
            d = ready.new_d()
            addresses.append(d.data_ptr())
        else:
            d = out
        held = ()  # memory stays alive until its launch is queued: other threads may evict it
        if ready.extents:
            held, places = self.sums_of(stream, ready.extents, device)
            addresses += places
        try:
            ready.start(addresses, stream)
        except BaseException:
            self.of_thread.ready.clear()  # parameters of a launch that failed are not used again
            raise
        del held
        if out is not None:
            increment_version(out)  # autograd learns of the write
        if self.written:
            self.increment_versions(inputs)
        return d

    def key_of(self, tensors: tuple[Tensor, ...], out: Tensor | None) -> Any:
        """Return what calls have in common that take the same parameters; None for calls to be checked anew.

        These are calls of other tensors than dense ones of the current GPU, calls inside of a transform of
        torch, and calls that torch's deterministic mode refuses.
        """
        if in_transform() or getattr(forward_ad, "_current_level", None) != -1:
            return None
        if not self.is_deterministic and torch.are_deterministic_algorithms_enabled():
            return None
        key: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        try:
            for tensor in tensors:
                key += (
                    tensor.shape,
                    tensor.stride(),
                    tensor.dtype,
                    tensor.get_device(),
                    tensor.requires_grad,
                    tensor.is_neg(),
                )
            key += [
                tensor.is_inference()
                for tensor in (tensors if self.written else (out,))
                if tensor is not None
            ]
        except (AttributeError, RuntimeError, TypeError):
            return None  # no tensor, or one without strides
        device = key[5]
        return tuple(key) if device >= 0 and device == torch.cuda.current_device() else None

    def sums_of(
        self, stream: int, extents: tuple[int, ...], device: int
    ) -> tuple[tuple[Tensor, ...], list[int]]:
        """Return memory for partial sums and its addresses, of the stream or the graph that captures it."""
        if is_captured(stream):
            made = self.workspaces.make_tensors(*extents, torch.device("cuda", device))
            return made, [tensor.data_ptr() for tensor in made]
        thread = threading.get_ident() if self.is_per_thread else 0
        return self.memory(stream, thread, extents, device)

    def keep(
        self,
        key: Any,
        tensors: tuple[Tensor, ...],
        d: Tensor,
        extents: tuple[int, ...],
        memory: tuple[Tensor, ...],
        launched: list[tuple[Launch, tuple[int, ...], list[Any]]],
        checked: Checked,
    ) -> None:
        """Keep the parameters of a launch for later calls of this thread."""
        if key is None:
            return
        # The order of `run`: what the caller passes, a new D, and memory for partial sums.
        inputs, has_out = self.contract.inputs, "out" in checked.places
        of_caller = SUMS[: len(tensors) - len(inputs) - has_out]
        names = [*inputs, *of_caller, "out", *SUMS[: len(memory)]]
        numbers = {name: number for number, name in enumerate(names)}
        held = (*tensors, *(() if has_out else (d,)), *memory)
        places = [tensor.data_ptr() for tensor in held]
        maps, pointers = list[tuple[Any, int, int]](), list[tuple[Any, int, int]]()
        for launch, _, _ in launched:
            for each in launch.addresses:
                number = numbers[each.tensor]
                slot = number, each.address - places[number]
                if each.map is None:
                    pointers.append((each.pointer, *slot))
                else:
                    maps.append((each.map, *slot))
        ready = self.of_thread.ready
        if len(ready) >= MAX_KEPT:
            ready.clear()
        ready[key] = Ready(
            [launch for launch, _, _ in launched],
            maps,
            pointers,
            [self.unaligned(name) for name in names[: len(tensors)]],
            [*self.apart(checked, numbers)],
            functools.partial(self.new_like, d.shape, d.device),
            extents,
        )

    def unaligned(self, name: str) -> int:
        """Return the bits of a tensor's address that must be 0."""
        argument = self.contract.arguments.get(name)
        return 0 if argument is None or argument.is_read_by_element else argument.alignment - 1

    def apart(self, checked: Checked, numbers: dict[str, int]) -> Iterator[Apart]:
        """Yield the pairs of tensors of a checked call that must share no memory."""
        places = {name: place._replace(address=0) for name, place in checked.places.items()}
        for written in (*self.written, *(("out",) if "out" in places else ())):
            for name, place in places.items():
                is_d = name == "c" and written == "out" and place == places["out"]
                may_be_same = is_d and self.contract.computes.get("d_may_be_c", True)
                if name != written:
                    both = places[written], place
                    spans = [(each.rows - 1) * each.pitch + each.width for each in both]
                    yield Apart(numbers[written], numbers[name], *spans, both, may_be_same)

    def new_like(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return memory for a D of this shape, in rows of whole 16-byte units."""
        *rows, columns = shape
        padded = self.contract.arguments["out"].padded(columns)
        d = torch.empty((*rows, padded), dtype=self.d_dtype, device=device)
        return d if padded == columns else d[..., :columns]
