"""A CUDA driver for packs on a machine without a GPU: Python functions behind the pointers of a C library.

It reads the memory that the launcher passes, as the driver does, and keeps what it read. A tensor map in its
memory has the address, then the number of the call that encoded it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import get_ident
from typing import Any

POINTER, INT, UNSIGNED = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
MAP_WORDS = 16
"""64-bit words of a CUtensorMap."""
BIT_OF_LARGE = 1 << 21
"""The bit of the second word that Triton clears for tensors of less than 128 KiB."""


@dataclass(frozen=True)
class Encoded:
    """The arguments of cuTensorMapEncodeTiled, the contiguous dimension first."""

    element_type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map as a kernel gets it."""

    address: int
    encoded: Encoded
    has_bit_of_large: bool
    """False if the launcher has cleared the bit that drivers up to CUDA 13.1 set for small tensors too."""


@dataclass(frozen=True)
class Launched:
    """A launch as the driver is told of it."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    stream: int | None
    attributes: dict[int, tuple[int, ...]]
    parameters: tuple[Any, ...]
    """A `TensorMap` for each map, a number for each other parameter."""
    thread: int


def words(address: int | None, kind: Any, length: int) -> tuple[int, ...]:
    """Return integers that lie at an address."""
    assert address
    return tuple((kind * length).from_address(address))


def done(*_: object) -> None:
    """Do nothing, with success."""


@dataclass
class FakeLibcuda:
    """The library: an attribute for each function. `sizes` has the parameters of each kernel, in bytes."""

    sizes: Mapping[str, Sequence[int]]
    version: int = 13_000
    context: int | None = 0
    """The device of the context; None if no thread has one."""
    failing: dict[str, int] = field(default_factory=dict[str, int])
    """The errors that functions report, by their names."""
    log: list[str] = field(default_factory=list[str])
    launches: list[Launched] = field(default_factory=list[Launched])
    cubins: list[bytes] = field(default_factory=list[bytes])
    missing: tuple[str, ...] = ()
    capture: int | None = None
    """The number of the capture that every stream is in."""

    def __post_init__(self) -> None:
        self.encodings: dict[int, Encoded] = {}
        self.entries: dict[int, str] = {}
        self.numbers = count(1)
        for name, (types, function) in self.functions().items():
            if name not in self.missing:
                setattr(self, name, ctypes.PYFUNCTYPE(INT, *types)(self.logged(name, function)))

    def logged(self, name: str, function: Callable[..., None]) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            self.log.append(name)
            if name in self.failing:
                return self.failing[name]
            return function(*arguments) or 0

        return called

    def functions(self) -> dict[str, tuple[tuple[Any, ...], Callable[..., Any]]]:
        """Return each function with the types of its parameters."""
        none = POINTER
        return {
            "cuGetErrorString": ((INT, none), self.error_string),
            "cuDriverGetVersion": ((none,), self.driver_version),
            "cuCtxGetDevice": ((none,), self.context_device),
            "cuCtxSetCurrent": ((none,), self.set_current),
            "cuDevicePrimaryCtxRetain": ((none, INT), self.retain),
            "cuThreadExchangeStreamCaptureMode": ((none,), done),
            "cuModuleLoadData": ((none, none), self.load),
            "cuModuleGetFunction": ((none, none, none), self.function),
            "cuFuncSetAttribute": ((none, INT, INT), done),
            "cuFuncSetCacheConfig": ((none, INT), done),
            "cuTensorMapEncodeTiled": ((none, INT, UNSIGNED, *(none,) * 5, *(INT,) * 4), self.encode),
            "cuTensorMapReplaceAddress": ((none, none), self.replace),
            "cuLaunchKernelEx": ((none,) * 4, self.launch),
            "cuStreamGetCaptureInfo_v2": ((none,) * 6, self.capture_info),
        }

    @staticmethod
    def put(place: int, kind: Any, value: int) -> None:
        kind.from_address(place).value = value

    def capture_info(self, _stream: int, status: int, number: int, *others: int | None) -> None:
        assert others == (None,) * 3
        self.put(status, INT, self.capture is not None)
        if self.capture is not None:
            self.put(number, ctypes.c_uint64, self.capture)

    def driver_version(self, place: int) -> None:
        self.put(place, INT, self.version)

    def retain(self, place: int, device: int) -> None:
        self.put(place, POINTER, device + 1)

    def set_current(self, context: int) -> None:
        self.context = context - 1

    def error_string(self, number: int, place: int) -> int:
        if number != 700:
            return 1
        self.text = ctypes.c_char_p(b"an illegal memory access was encountered")
        self.put(place, POINTER, ctypes.cast(self.text, POINTER).value or 0)
        return 0

    def context_device(self, place: int) -> int:
        if self.context is None:
            return 201
        self.put(place, INT, self.context)
        return 0

    def load(self, place: int, data: int) -> None:
        self.cubins.append(ctypes.string_at(data, 4))
        self.put(place, POINTER, next(self.numbers))

    def function(self, place: int, _module: int, name: int) -> None:
        number = next(self.numbers)
        self.entries[number] = ctypes.string_at(name).decode()
        self.put(place, POINTER, number)

    def encode(
        self,
        place: int,
        element_type: int,
        rank: int,
        address: int | None,
        *rest: Any,
    ) -> None:
        assert place % 64 == 0, "a tensor map begins at a multiple of 64 bytes"
        extents, strides, box, steps, interleave, swizzle, promotion, fill = rest
        number = next(self.numbers)
        self.encodings[number] = Encoded(
            element_type,
            words(extents, ctypes.c_uint64, rank),
            words(strides, ctypes.c_uint64, rank - 1),
            words(box, ctypes.c_uint32, rank),
            words(steps, ctypes.c_uint32, rank),
            interleave,
            swizzle,
            promotion,
            fill,
        )
        memory = (ctypes.c_uint64 * MAP_WORDS).from_address(place)
        memory[:] = (address or 0, BIT_OF_LARGE, number, *(0,) * (MAP_WORDS - 3))

    def replace(self, place: int, address: int | None) -> int:
        if (address or 0) % 16:
            return 1
        (ctypes.c_uint64 * MAP_WORDS).from_address(place)[0] = address or 0
        return 0

    def launch(self, config: int, function: int, parameters: int, extra: int | None) -> None:
        assert extra is None
        *sizes, smem_bytes = words(config, ctypes.c_uint32, 7)
        stream = POINTER.from_address(config + 32).value
        attributes, number = POINTER.from_address(config + 40).value, UNSIGNED.from_address(config + 48).value
        entry = self.entries[function]
        places = words(parameters, ctypes.c_uint64, len(self.sizes[entry]))
        self.launches.append(
            Launched(
                entry,
                (sizes[0], sizes[1], sizes[2]),
                (sizes[3], sizes[4], sizes[5]),
                smem_bytes,
                stream,
                dict(self.attribute((attributes or 0) + 72 * each) for each in range(number)),
                tuple(map(self.parameter, places, self.sizes[entry])),
                get_ident(),
            )
        )

    @staticmethod
    def attribute(place: int) -> tuple[int, tuple[int, ...]]:
        return INT.from_address(place).value, words(place + 8, ctypes.c_uint32, 3)

    def parameter(self, place: int, size: int) -> Any:
        if size == 8 * MAP_WORDS:
            address, bits, number = words(place, ctypes.c_uint64, 3)
            return TensorMap(address, self.encodings[number], bool(bits & BIT_OF_LARGE))
        return {4: ctypes.c_int32, 8: ctypes.c_int64}[size].from_address(place).value
