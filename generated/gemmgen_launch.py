"""Calls generated matmuls: checks tensors, launches known calls again, registers operators with torch.

gemmgen writes this file beside the modules that it generates, and into packs of compiled modules, with
gemmgen_driver.py, which launches. It needs torch, and Triton only where a module has kernels to compile. A
module makes one `Host` from its tables and its `launch` function, and its `matmul` calls that:

1. While torch traces, in a mode of torch, or for a tensor with a dispatch of its own, a call goes to the
   `Operator` ``torch.ops.gemmgen.<module>``, which torch compiles, exports and counts.
2. For a call with the sizes, strides and types of an earlier one of its thread, `KnownCalls.launch` puts its
   addresses into the parameters of that launch, and launches by the driver (`Ready`).
3. `Host.run_checked` takes any other call: it checks the tensors (`Contract`), gets memory for D and for
   partial sums (`Workspaces`), and lets the module launch its kernels (`Host.launching`), which Triton
   compiles first if need be, and which a pack has compiled. The parameters are kept for step 2.

No address is a part of a key, so that new tensors take the same path as known ones. Parameters belong to one
thread, and the driver copies them before a launch returns, so that a captured graph has its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import threading
import types
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tag, Tensor, is_grad_enabled, is_inference_mode_enabled
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

if __package__:
    from .gemmgen_driver import (
        DriverError,
        Launch,
        current_stream,
        driver,
        facts_of_compiled,
        find_private,
        relaxed_capture,
    )
else:
    from gemmgen_driver import (
        DriverError,
        Launch,
        current_stream,
        driver,
        facts_of_compiled,
        find_private,
        relaxed_capture,
    )

MAX_KEPT = 4096  # launches whose parameters a module keeps for a thread; then it starts anew
MAX_STREAMS = 16  # streams whose memory a module keeps, the latest ones
RESERVED_BYTES = 2**20  # of zeros for captured calls, by which a GPU's reserve grows
MAX_RESERVED = 16  # times that it grows
MAX_PART = 2**16  # bytes of a tensor that is taken from it
LINE_BYTES = 256  # parts of it begin at multiples, so that no two have a line of a cache in common
PACK = "pass b and b_scale as pack_weight of this module returns them"
TMA_BYTES = 16  # TMA takes addresses and row strides that are multiples of 16 bytes


# Without the first, torch's dispatcher gets every call; without the others, transforms get torch's errors.
count_modes = find_private("torch._C._len_torch_dispatch_stack", lambda: 1)
in_transform = find_private("torch._C._are_functorch_transforms_active", lambda: False)
is_transformed = find_private("torch._C._functorch.is_functorch_wrapped_tensor", lambda _: False)


@functools.lru_cache(maxsize=1024)
def have_dispatch(*types_of_tensors: type) -> bool:
    """Return True if one of these types has a ``__torch_dispatch__`` of its own, as DTensor has."""
    base = Tensor.__torch_dispatch__
    return any(getattr(each, "__torch_dispatch__", base) is not base for each in types_of_tensors)


# --- a module


class Host:
    """The host side of one generated module."""

    def __init__(
        self,
        module: str,
        arguments: Mapping[str, Mapping[str, Any]],
        tma: Collection[str],
        computes: Mapping[str, Any],
        launch: Callable[..., list[tuple[Any, tuple[int, ...], list[Any]]]],
        *,
        transposed: Sequence[str] = (),
        make_workspace: Callable[..., tuple[Tensor, ...]] | None = None,
        make_sums: Callable[..., tuple[Tensor, ...]] | None = None,
        count_sums: Callable[[int, int], int] | None = None,
        pack_scales: Callable[[Tensor], Tensor] | None = None,
        copy: Callable[[list[tuple[Tensor, Tensor]]], None] | None = None,
        backward: tuple[Callable[..., None], Callable[..., tuple[Any, ...]]] | None = None,
        namespace: str = "gemmgen",
        is_compiled: bool = False,
    ) -> None:
        """Register the operator of a module.

        Args:
            module: The module's ``__name__``, from which its operator is named.
            arguments: The module's ARGUMENTS: by the name of a tensor its dtype and its axes, of `AXES`.
            tma: The module's TMA: the names of the tensors that TMA moves.
            computes: The module's COMPUTES, with the names of the inputs in the operator's order.
            launch: Launches the kernels for checked tensors: the inputs, D, memory for sums. Returns each
                compiled kernel with its grid and its arguments.
            transposed: The matrices that are passed as transposed views of the rows in memory.
            make_workspace: Makes the memory for sums and counters of an M x N D, as every call leaves it.
            make_sums: Makes the memory for a number of sums, which one kernel leaves for a second one.
            count_sums: Returns that number for an M x N D.
            pack_scales: Packs the scales of blocks as the kernel reads them.
            copy: Copies matrices to aligned ones; only modules that take misaligned tensors have it.
            backward: A function that keeps tensors for the backward, and one that computes the gradients.
            namespace: Where torch has the operator: ``torch.ops.<namespace>.<module>``.
            is_compiled: True in a pack, whose kernels need no Triton.
        """
        self.__module__ = module  # where pickle finds it, by the name that `__reduce__` returns
        self.launch, self.copy, self.has_backward = launch, copy, backward is not None
        self.contract = contract = Contract(
            arguments,
            tma,
            computes,
            transposed,
            pack_scales,
            copies=bool(copy),
            has_backward=self.has_backward,
        )
        self.workspaces = Workspaces(make_workspace, make_sums, count_sums)
        self.is_deterministic = computes.get("deterministic", True)
        self.traced = traced = Operator(operator_name(module), contract, namespace)
        self.memory, self.is_per_thread = self.workspaces.of_stream, self.workspaces.is_per_thread
        self.written, self.is_compiled = contract.written, is_compiled
        self.d_dtype = contract.arguments["out"].dtype
        self.known = KnownCalls(
            [argument.dtype for argument in contract.arguments.values()],
            written=len(contract.written),
            is_deterministic=self.is_deterministic,
            is_compiled=is_compiled,
        )
        run, count_flops = self.run_as_operator, traced.count_flops
        parameters = [f"Tensor(b!) {name}" if name in self.written else name for name in contract.inputs]
        define_operator(
            traced.name,
            parameters,
            run,
            traced.shape,
            backward,
            count_flops=count_flops,
            namespace=namespace,
        )

    @contextlib.contextmanager
    def launching(self, device: torch.device) -> Generator[None]:
        """Let this thread launch kernels on a GPU, with a CUDA context: without one there are no tensor maps.

        While Triton compiles, loads and launches, no other thread does: it compiles in one thread at a time,
        and marks a kernel as loaded before it has the kernel's handle.
        """
        of_triton = shared_in_process("triton_lock", threading.RLock)
        with contextlib.nullcontext() if self.is_compiled else of_triton, torch.cuda.device(device.index):
            try:
                driver().make_context(device.index)
            except DriverError:
                if self.is_compiled:
                    raise  # Triton may launch without this driver: in a simulator
            yield

    def __call__(
        self, *inputs: Tensor, out: Tensor | None = None, workspace: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Return D [M, N], which is `out` if that is given."""
        workspace = workspace or ()
        if not (is_compiling() or count_modes()):
            # A tensor that is seen by torch, or that a gradient flows to, has no launch that is known.
            d, key = self.known.launch(inputs, out, workspace)
            if d is not None:
                return d
            is_seen = have_dispatch(type(out), *map(type, inputs))
            if not is_seen and not (self.has_backward and requires_backward(inputs)):
                return self.run_checked(inputs, out, workspace, key)
        return self.traced(*inputs, out=out)

    def again(self, *inputs: Tensor) -> Tensor | None:
        """Launch a call whose like was launched before, and return its D; return None for any other call.

        Nothing is checked or raised, so a caller asks this first and calls in full if it is None.
        """
        return self.known.again(inputs)

    def __reduce__(self) -> str:
        """Let a copy or a pickle have the module's own host side, which is `call` in each module."""
        return "call"

    def run_as_operator(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor | None:
        """Run a call of the operator, which returns nothing if it writes into `out`."""
        d = self.run(*inputs, out=out)
        return d if out is None else None

    def run(
        self,
        *inputs: Tensor,
        out: Tensor | None = None,
        workspace: tuple[Tensor, ...] = (),
        note: Callable[[Ready], None] | None = None,
    ) -> Tensor:
        """Launch with the parameters of an earlier call like this one; check and prepare any other call.

        `note` is called with the parameters if they lie ready for a later call like this one.
        """
        d, key = self.known.launch(inputs, out, workspace)
        if d is None:
            return self.run_checked(inputs, out, workspace, key, note)
        if note:
            note(self.known.ready(key))
        return d

    def sums_of(
        self, extents: tuple[int, ...], stream: int, device: int
    ) -> tuple[tuple[Tensor, ...], list[int]]:
        """Return memory for partial sums and its addresses, of the stream or the graph that captures it."""
        if is_captured(stream):
            made = self.workspaces.in_graph(stream, extents, device)
            return made, [tensor.data_ptr() for tensor in made]
        thread = threading.get_ident() if self.is_per_thread else 0
        return self.memory(stream, thread, extents, device)

    def run_checked(
        self,
        inputs: tuple[Tensor, ...],
        out: Tensor | None,
        workspace: tuple[Tensor, ...],
        key: Any,
        note: Callable[[Ready], None] | None = None,
    ) -> Tensor:
        """Check a call, launch its kernels, and keep the launch under `key`."""
        contract, a = self.contract, inputs[0]
        if contract.has_more_dimensions(a):
            return self.run_flattened(inputs, out, workspace, key, note)
        passed, (m, n, k), checked = contract.check_inputs(inputs)
        if k == 0 and not contract.is_zero_without_k and not a.is_meta:
            if contract.has_scales:
                raise ValueError("a must have a K of 1 or more: without scales there is no product")
            return self.run(*self.zeros(*inputs[:2]), *inputs[2:], out=out)
        if not self.is_deterministic and not a.is_meta:
            refuse_in_deterministic_mode(self.traced.name)
        d = contract.find_output(a, out, checked)
        result = d if out is None else out
        if contract.scatters and 0 in (m, *d.shape):  # no row of D is stored
            return result
        if 0 in (m, n, k) or a.is_meta:  # nothing to multiply, or torch asks for the shape
            return result.zero_()
        if out is not None:
            contract.check_output(out, checked.places)
        contract.check_written(inputs, checked)
        contract.check_gpu(a.device)
        extents, memory = (), ()
        if workspace:
            self.workspaces.check(workspace, m, n, a.device)
        elif extents := self.workspaces.extents(m, n):
            memory = self.workspaces.find(extents, a.device)
        with self.launching(a.device):
            self.copy_all([*checked.copies.values()])
            launched = self.launch(*passed, d, *workspace, *memory)
            if d.data_ptr() != result.data_ptr():
                self.copy_all([(d, result)])
        # A launch that read a copy is not kept: the copy's memory is free after it.
        places = [tensor.data_ptr() for tensor in (*inputs, result)]
        if places == [tensor.data_ptr() for tensor in (*passed, d)]:
            tensors = (*inputs, *workspace) if out is None else (*inputs, *workspace, out)
            ready = self.prepare(tensors, out, d, extents, memory, launched, checked)
            if key is not None and ready is not None:
                self.known.keep(key, ready)
                if note:
                    note(ready)
        note_writes(out, inputs[len(inputs) - len(self.written) :])
        return result

    def run_flattened(
        self,
        inputs: tuple[Tensor, ...],
        out: Tensor | None,
        workspace: tuple[Tensor, ...],
        key: Any,
        note: Callable[[Ready], None] | None,
    ) -> Tensor:
        """Launch for all rows of an A [..., M, K], and keep the launch under the `key` of these tensors."""
        places, prepared = [tensor.data_ptr() for tensor in inputs], list[Ready]()

        def run(*flat: Tensor, out: Tensor | None = None) -> Tensor:
            # Rows that were copied to lie in one matrix are copied for each call.
            lie_there = key is not None and places == [tensor.data_ptr() for tensor in flat]
            return self.run(*flat, out=out, workspace=workspace, note=prepared.append if lie_there else None)

        d = self.contract.flattened(run, inputs, out)
        for each in prepared:
            ready = each.making(self.new_like(d.shape, d.device))
            self.known.keep(key, ready)
            if note:
                note(ready)
        return d

    def prepare(
        self,
        tensors: tuple[Tensor, ...],
        out: Tensor | None,
        d: Tensor,
        extents: tuple[int, ...],
        memory: tuple[Tensor, ...],
        launched: list[tuple[Any, tuple[int, ...], list[Any]]],
        checked: Checked,
    ) -> Ready | None:
        """Return the parameters of a launch for later calls of this thread.

        It is None for kernels that Triton has to launch: with memory of its own, or instrumented.
        """
        launches = list[Launch]()
        for each in launched:
            if (prepared := prepare_launch(*each)) is None:
                return None
            launches.append(prepared)
        # The order of `KnownCalls.launch`: what the caller passes, a new D, and memory for partial sums.
        held = (*tensors, *((d,) if out is None else ()), *memory)
        names = [*self.contract.inputs, *("",) * (len(tensors) - len(self.contract.inputs))]
        if out is not None:
            names[-1] = "out"
        numbers = {name: number for number, name in enumerate(names) if name}
        maps, pointers = list[Slot](), list[Slot]()
        unaligned = [self.unaligned(name) for name in names]
        for launch in launches:
            for each in launch.addresses:
                if (number := owner(each.base, held)) is None:
                    return None
                offset = each.address - held[number].data_ptr()
                (pointers if each.map is None else maps).append(
                    Slot(number, offset, each.address, each.map or each.pointer)
                )
                # Triton compiles for addresses that are multiples of 16, if a first one is.
                if not self.is_compiled and number < len(unaligned) and not each.address % TMA_BYTES:
                    unaligned[number] |= TMA_BYTES - 1
        new_d = self.new_like(d.shape, d.device)
        sums = functools.partial(self.sums_of, extents) if extents else None
        return Ready(launches, maps, pointers, unaligned, [*self.apart(checked, numbers)], new_d, sums)

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

    def new_like(self, shape: Sequence[int], device: torch.device) -> Callable[[], Tensor]:
        """Return what makes memory for a D of this shape, in rows of whole 16-byte units."""
        *rows, columns = shape
        padded = self.contract.arguments["out"].padded(columns)
        strides = [1, padded]
        for extent in rows[:0:-1]:
            strides.append(strides[-1] * extent)
        extents, strides = (*rows, padded), tuple(strides[::-1])
        made = functools.partial(torch.empty_strided, extents, strides, dtype=self.d_dtype, device=device)
        return made if padded == columns else lambda: made()[..., :columns]

    def zeros(self, a: Tensor, b: Tensor) -> Iterator[Tensor]:
        """Yield an A and a B of zeros for a K of 0: TMA has no map of matrices without columns."""
        for name, *extents in ("a", *a.shape[:-1], TMA_BYTES), ("b", *b.shape[:-2], TMA_BYTES, b.shape[-1]):
            argument = self.contract.arguments[name]
            stored = argument.stored(a.new_empty(extents, device="meta")).shape
            padded = a.new_zeros((*stored[:-1], argument.padded(stored[-1])), dtype=argument.dtype)
            yield argument.stored(padded[..., : stored[-1]])

    def copy_all(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Copy each source matrix to its target: by the module's kernel, or by torch if a row has gaps."""
        by_kernel: list[tuple[Tensor, Tensor]] = []
        for source, target in pairs:
            if source.shape[-1] == 1 or source.stride(-1) == 1:
                by_kernel.append((source, target))
            else:
                target.copy_(source)
        if by_kernel:
            self.copy(by_kernel)

    def align(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor as TMA takes it: itself, or an aligned copy."""
        if name not in self.contract.arguments:
            raise ValueError(f"name must be one of {', '.join(self.contract.arguments)}, found {name}")
        checked = Checked()
        aligned = self.contract.check(self.contract.arguments[name], tensor, checked)
        if not checked.copies:
            return tensor
        with self.launching(tensor.device):
            self.copy_all([*checked.copies.values()])
        return aligned

    def check_offsets(self, offs: Tensor, extent: int) -> None:
        """Check the ends of groups, for tests: it waits for the GPU, and no call makes this check.

        `extent` is K if the groups divide K, else M: the rows of A, or the elements of `a_rows`. The ends [G]
        must lie from 0 to `extent` and not fall. With scales of blocks along K, each end is `extent` or a
        multiple of the block. Raises ValueError with the first wrong end.
        """
        contract = self.contract
        if "offs" not in contract.inputs:
            raise ValueError("this kernel has no offs")
        divides_k = "groups" not in contract.arguments["b"].axes
        multiple = contract.computes.get("scale_vector", 1) if divides_k else 1
        begin = 0
        for group, end in enumerate(offs.tolist()):
            if not begin <= end <= extent:
                raise ValueError(f"offs[{group}] must be from {begin} to {extent}, found {end}")
            if end % multiple and end != extent:
                wanted = f"{extent} or a multiple of {multiple}"
                raise ValueError(f"offs[{group}] must be {wanted}, found {end}")
            begin = end

    def lay_out(self, name: str, tensor: Tensor | None) -> Tensor | None:
        """Return a matrix that lies in memory as the argument of this name has to: itself, or a copy.

        A backward calls it, because torch may hand it a matrix with other strides than the checked one.
        """
        if tensor is None:
            return None
        argument = self.contract.arguments[name]
        stored = argument.stored(tensor)
        *rows, columns = stored.shape
        *groups, pitch, stride = stored.stride()
        multiple = argument.row_multiple
        is_aligned = pitch % multiple == 0 and tensor.storage_offset() % multiple == 0
        is_dense = stride == 1 and pitch >= columns and groups in ([], [rows[-1] * pitch])
        if is_dense and (is_aligned or self.copy):
            return tensor
        padded = tensor.new_empty((*rows, argument.padded(columns)))[..., :columns]
        return argument.stored(padded.copy_(stored))

    def multiply_over_zeros(
        self, multiply: Callable[..., Tensor], a: Tensor, b: Tensor, *, offs: Tensor
    ) -> Tensor:
        """Return the products of groups of rows, with zeros in the rows of no group.

        A backward calls it: the kernel that `multiply` launches leaves these rows as they are.
        """
        rows, columns = a.shape[0], b.shape[-1]
        if columns == self.contract.arguments["a"].padded(columns):
            return multiply(a, b, offs=offs, out=a.new_zeros((rows, columns)))
        # No kernel takes an `out` of these rows. Rows of no group come after the last end.
        d = multiply(a, b, offs=offs)
        is_of_none = torch.arange(rows, device=d.device) >= offs[-1]
        return d.masked_fill_(is_of_none[:, None], 0)


def requires_backward(inputs: tuple[Tensor, ...]) -> bool:
    """Return True if autograd follows a call; the checks refuse transforms of torch.func."""
    if not torch.is_grad_enabled() or in_transform():
        return False
    return any(getattr(each, "requires_grad", False) for each in inputs)


def refuse_in_deterministic_mode(name: str) -> None:
    """Do with sums in any order what torch does with its own in ``use_deterministic_algorithms(True)``."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"{name} has no deterministic implementation: it adds up sums in any order"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}; torch.use_deterministic_algorithms(True) is set")
    warnings.warn(message, stacklevel=5)  # the caller of matmul


# --- launches that are kept


class Slot:
    """A place in the parameters of a launch that has the address of a tensor."""

    __slots__ = ("address", "offset", "place", "tensor")

    def __init__(self, tensor: int, offset: int, address: int, place: Any) -> None:
        """Note the number of the tensor, the bytes from its address to this one, and this one now."""
        self.tensor, self.offset, self.address, self.place = tensor, offset, address, place


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


class Ready:
    """The launches of a call whose parameters lie ready, for later calls of the same thread."""

    __slots__ = ("apart", "api", "launches", "maps", "new_d", "pointers", "sums", "unaligned", "use")

    def __init__(
        self,
        launches: list[Launch],
        maps: list[Slot],
        pointers: list[Slot],
        unaligned: list[int],
        apart: list[Apart],
        new_d: Callable[[], Tensor],
        sums: Callable[[int, int], Memory] | None,
        use: Use | None = None,
    ) -> None:
        """Keep the parameters of a launch.

        Args:
            launches: The launches of the call, in order.
            maps: The tensor maps among their parameters.
            pointers: The pointers among them.
            unaligned: For each tensor that the caller passes, the bits of its address that must be 0.
            apart: The pairs of these tensors that must share no memory.
            new_d: Makes a D for a call without `out`.
            sums: Returns memory for sums, for a stream and a GPU; None without such memory, or if the caller
                passes it.
            use: Whether the parameters are in use, of others that share them.
        """
        self.launches, self.maps, self.pointers, self.unaligned = launches, maps, pointers, unaligned
        self.apart, self.new_d, self.sums = apart, new_d, sums
        self.api, self.use = driver(), use or Use()

    def making(self, new_d: Callable[[], Tensor]) -> Ready:
        """Return the same parameters for calls whose D is made in another way."""
        return Ready(
            self.launches,
            self.maps,
            self.pointers,
            self.unaligned,
            self.apart,
            new_d,
            self.sums,
            self.use,
        )

    def takes(self, addresses: list[int]) -> bool:
        """Return True if the tensors of a call lie where the kernel can use them, and it is not in use."""
        for address, bits in zip(addresses, self.unaligned, strict=True):
            if address & bits or not address:
                return False
        for pair in self.apart:
            number, other_number, written_bytes, other_bytes, _, _ = pair
            written, other = addresses[number], addresses[other_number]
            # Most tensors lie far apart; rows that interleave are compared one by one.
            is_apart = written + written_bytes <= other or other + other_bytes <= written
            if not is_apart and pair.collide(written, other):
                return False
        return not self.use.is_on

    def start(self, addresses: list[int], stream: int) -> None:
        """Launch for tensors at these addresses; raises DriverError if the driver refuses."""
        self.use.is_on = True
        for slot in self.maps:
            address = addresses[slot.tensor] + slot.offset
            if address != slot.address:
                if result := self.api.replace_address(slot.place, address):
                    self.api.check("cuTensorMapReplaceAddress", result)
                slot.address = address
        for slot in self.pointers:
            slot.place.value = addresses[slot.tensor] + slot.offset
        for launch in self.launches:
            launch.start(stream)
        self.use.is_on = False


class Use:
    """Tells if a call of this thread uses parameters; a signal's handler may make another call then."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        """Nothing uses them."""
        self.is_on = False


class OfThread(threading.local):
    """The parameters that a function keeps for one thread."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.ready: dict[Any, Ready] = {}


class KnownCalls:
    """The calls of a function whose parameters lie ready: for each thread, by all that decides them.

    Addresses are no part of that: they are replaced in the parameters at each call.
    """

    def __init__(
        self, dtypes: Iterable[torch.dtype], *, written: int, is_deterministic: bool, is_compiled: bool
    ) -> None:
        """Know no call yet.

        Args:
            dtypes: The types of the tensors of a call.
            written: The number of inputs, the last ones, that the kernels write beside D.
            is_deterministic: False if a kernel adds up sums in any order.
            is_compiled: True in a pack, whose kernels need no Triton.
        """
        self.written, self.is_deterministic, self.is_compiled = written, is_deterministic, is_compiled
        # Only parts of complex numbers can be views that torch negates when they are read.
        self.may_be_negative = not {torch.float16, torch.float32}.isdisjoint(dtypes)
        self.of_thread = OfThread()

    def ready(self, key: Any) -> Ready:
        """Return the parameters of a known call of this thread."""
        return self.of_thread.ready[key]

    def keep(self, key: Any, ready: Ready) -> None:
        """Keep the parameters of a call for later ones of this thread with the same key."""
        kept = self.of_thread.ready
        if len(kept) >= MAX_KEPT:
            kept.clear()
        kept[key] = ready

    def forget(self) -> None:
        """Know no call any more, in any thread."""
        self.of_thread = OfThread()

    def again(self, inputs: tuple[Tensor, ...], more: tuple[Any, ...] = ()) -> Tensor | None:
        """Return the D of a known call, launched again; return None for any other, and while torch traces."""
        if is_compiling() or count_modes():
            return None
        return self.launch(inputs, None, more=more)[0]

    def launch(
        self,
        inputs: tuple[Tensor, ...],
        out: Tensor | None,
        workspace: tuple[Tensor, ...] = (),
        more: tuple[Any, ...] = (),
    ) -> tuple[Tensor | None, Any]:
        """Launch with the parameters of an earlier call like this one; return D and the call's key.

        For any other call, D is None: the key is then the one under which its parameters may be kept, or
        None. `more` are values that choose the kernel beside the tensors.
        """
        tensors = (*inputs, *workspace) if out is None else (*inputs, *workspace, out)
        found = self.key_of(tensors, out, more)
        if found is None:
            return None, None
        key, addresses, device = found
        kept = self.of_thread.ready
        if (ready := kept.get(key)) is None:
            return None, key
        if not ready.takes(addresses):
            return None, None
        stream = current_stream(device)
        held = ()  # memory stays alive until its launch is queued: other threads may evict it
        try:
            if out is None:
                d = ready.new_d()
                addresses.append(d.data_ptr())
            else:
                d = out
            if ready.sums:
                held, places = ready.sums(stream, device)
                addresses += places
            ready.start(addresses, stream)
        except BaseException:
            kept.clear()  # parameters of a launch that failed are not used again
            raise
        del held
        if out is not None or self.written:
            note_writes(out, inputs[len(inputs) - self.written :])
        return d, key

    def key_of(
        self, tensors: tuple[Tensor, ...], out: Tensor | None, more: tuple[Any, ...] = ()
    ) -> tuple[tuple[Any, ...], list[int], int] | None:
        """Return what calls have in common that take the same parameters, the addresses, and the GPU.

        It is None for calls that are checked each time: of other tensors than dense ones of the current GPU,
        inside of a transform of torch, in torch's deterministic mode if a kernel has no order of its sums,
        and while a hook of Triton wants to see each launch.
        """
        if in_transform() or getattr(forward_ad, "_current_level", None) != -1:
            return None
        if not self.is_deterministic and torch.are_deterministic_algorithms_enabled():
            return None
        if not self.is_compiled and have_hooks():
            return None
        key, addresses = list[Any](), list[int]()
        try:
            for tensor in tensors:  # these lines decide the time of a call on the host
                key += (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
                key.append(tensor.requires_grad)
                addresses.append(tensor.data_ptr())
            key += (is_grad_enabled(), is_inference_mode_enabled(), *more)
            if self.may_be_negative:
                key += [tensor.is_neg() for tensor in tensors]
            if self.written:
                key += [tensor.is_inference() for tensor in tensors]
            elif out is not None:
                key.append(out.is_inference())
            device: int = key[4]
            if device < 0 or device != torch.cuda.current_device():
                return None
        except (AssertionError, AttributeError, RuntimeError, TypeError):
            return None  # no tensor, one without strides, or a torch without GPUs
        if len({*addresses}) < len(addresses):  # which of them are one tensor, such as C and D
            key.append(tuple(map(addresses.index, addresses)))
        return tuple(key), addresses, device


def note_writes(out: Tensor | None, inputs: Sequence[Tensor]) -> None:
    """Let autograd learn of the writes to D, if the caller passed it, and to inputs."""
    for tensor in inputs if out is None else (out, *inputs):
        increment_version(tensor)


def owner(base: int, tensors: Sequence[Tensor]) -> int | None:
    """Return the number of the tensor whose memory an address is of; None if that is not clear."""
    starts = [tensor.data_ptr() for tensor in tensors]
    if base in starts:
        return len(starts) - 1 - starts[::-1].index(base)  # of C and D at one address, D
    inside = [
        number
        for number, (tensor, start) in enumerate(zip(tensors, starts, strict=True))
        if 0 <= base - start < tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    ]
    return inside[0] if len(inside) == 1 else None


def prepare_launch(kernel: Any, grid: tuple[int, ...], arguments: list[Any]) -> Launch | None:
    """Return the launch of a compiled kernel on any stream; None if Triton has to launch it."""
    if isinstance(kernel, Launch):
        return kernel
    try:
        facts = facts_of_compiled(kernel)
        return None if facts is None else Launch(kernel.function, facts, grid, arguments)
    except (AttributeError, LookupError, TypeError, ValueError, DriverError) as error:
        warn_of_triton(repr(error))
        return None


@functools.cache
def warn_of_triton(reason: str) -> None:
    """Say, once for a reason, that Triton launches each call."""
    versions = f"torch {torch.__version__} with Triton {find_private('triton.__version__')}"
    message = f"gemmgen_launch does not know {versions}: preparing a launch raised {reason}"
    warnings.warn(f"{message}. Each call is launched by Triton's Python, which takes longer.", stacklevel=7)


def have_hooks() -> bool:
    """Return True if a profiler or another hook of Triton wants to see each launch."""
    hooks = knobs()
    return bool(hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls)


@functools.cache
def knobs() -> Any:
    """Return what Triton is set to do at run time."""
    import triton  # not needed to choose a kernel

    return triton.knobs.runtime


# --- memory that is kept

Memory = tuple[tuple[Tensor, ...], list[int]]
"""Tensors and their addresses."""


def is_captured(stream: int) -> bool:
    """Return True if a graph captures the current stream, whose handle this is; nothing captures stream 0."""
    return bool(stream) and torch.cuda.is_current_stream_capturing()


def capture_of(stream: int) -> int | None:
    """Return the number of the capture that a stream is in; None if the driver does not tell it."""
    try:
        return driver().capture_of(stream)
    except DriverError:
        return None


def allocated(make: Callable[[], tuple[Tensor, ...]], device: int) -> tuple[Tensor, ...]:
    """Return new memory for the current stream, of no graph and of no pool of this thread."""
    stream = torch.cuda.current_stream(device)

    def allocate() -> tuple[Tensor, ...]:
        with torch.cuda.stream(stream):
            return make()

    # A pool in use is one thread's (torch.cuda.use_mem_pool), so another thread allocates.
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(allocate).result()


class Reserve:
    """Zeros in a GPU's memory for calls that graphs capture, which leave them zero.

    Without them, each captured call adds a node to its graph that clears counters, and ends the overlap of
    kernels by PDL. During a capture, torch allocates in the pool of the graph alone, so other calls reserve
    memory ahead. A part belongs to one capture for ever, because nothing tells when its last graph is gone.
    Parts of such graphs are lost: at most the whole reserve, 16 MiB a GPU (`MAX_RESERVED` times
    `RESERVED_BYTES`). A call that gets no part clears memory of its graph's pool.
    """

    def __init__(self, device: int) -> None:
        """Reserve nothing yet."""
        self.device = device
        self.blocks = list[tuple[Tensor, int]]()  # each with the bytes of it that are taken
        self.lock = threading.RLock()

    @property
    def is_low(self) -> bool:
        """True if less than half of a block is left, and another one may be reserved."""
        left = sum(block.numel() - taken for block, taken in self.blocks)
        return 2 * left < RESERVED_BYTES and len(self.blocks) < MAX_RESERVED

    def fill(self) -> None:
        """Reserve another block if little is left; the current stream is one that no graph captures."""
        # A GPU without room for a block has none to reserve, and a simulator has no driver.
        with contextlib.suppress(DriverError, torch.OutOfMemoryError):
            if self.is_low:
                api = driver()
                with self.lock:
                    if self.is_low:
                        (block,) = allocated(lambda: self.zeros(api), self.device)
                        self.blocks.append((block, 0))

    def zeros(self, api: Any) -> tuple[Tensor]:
        """Return a block of zeros: graphs on all streams may read it, so this waits until it is written."""
        made = torch.zeros(RESERVED_BYTES, dtype=torch.uint8, device=torch.device("cuda", self.device))
        with relaxed_capture(api):  # this thread captures nothing, but another one may do so
            torch.cuda.current_stream(self.device).synchronize()
        return (made,)

    def take(self, size: int) -> Tensor | None:
        """Return this number of zeroed bytes, which nothing else gets; None if there are too few."""
        with self.lock:
            for number, (block, taken) in enumerate(self.blocks):
                if size <= min(MAX_PART, block.numel() - taken):
                    self.blocks[number] = block, taken + -(-size // LINE_BYTES) * LINE_BYTES
                    return block[taken : taken + size]
        return None


def reserve_of(device: int) -> Reserve:
    """Return the reserve of a GPU, which all modules of the process share.

    It outlives each of them, because graphs may do so.
    """
    reserves = shared_in_process("reserves", dict)
    return reserves.get(device) or reserves.setdefault(device, Reserve(device))


class Uninitialized(TorchFunctionMode):
    """Notes the tensors whose contents the maker of a workspace leaves open; all others are zeros."""

    def __init__(self) -> None:
        """Note nothing yet."""
        super().__init__()
        self.made = list[Tensor]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        made = function(*args, **(kwargs or {}))
        if function.__name__ == "empty":
            self.made.append(made)
        return made


class Workspaces:
    """Memory for the partial sums and counters that the programs of a kernel leave each other.

    A captured call has sums of its graph's pool, and counters of the GPU's `Reserve`. It shares the counters
    with calls of the same capture and stream, which follow one another, and with no other ones, which may run
    at the same time. All other memory is kept for later calls on the stream, and comes from torch's common
    pool: `torch.compile(mode="reduce-overhead")` warms up in the pool of a graph, and refuses memory of that
    pool that is kept.
    """

    def __init__(
        self,
        make_workspace: Callable[..., tuple[Tensor, ...]] | None,
        make_sums: Callable[..., tuple[Tensor, ...]] | None,
        count_sums: Callable[[int, int], int] | None,
    ) -> None:
        """Make no memory yet; `Host` has the same arguments."""
        self.count_sums, self.make_tensors = count_sums, make_workspace or make_sums
        # Sums that one kernel leaves for a second one: a thread that calls between them must not write there.
        self.is_per_thread = count_sums is not None
        self.of_stream = functools.lru_cache(MAX_STREAMS)(self.make)
        self.of_capture = functools.lru_cache(MAX_STREAMS)(self.take)

    def make(self, _stream: int, _thread: int, extents: tuple[int, ...], device: int) -> Memory:
        """Return new memory of these extents, for the current stream and of no graph or pool of this thread.

        The stream and the thread are keys of `of_stream` alone.
        """
        self.reserve(device)
        made = allocated(lambda: self.make_tensors(*extents, torch.device("cuda", device)), device)
        return made, [tensor.data_ptr() for tensor in made]

    def reserve(self, device: int) -> None:
        """Reserve zeros for captured calls, if this kernel needs any; nothing captures the current stream."""
        if not self.count_sums:
            reserve_of(device).fill()

    def take(self, _capture: int, _stream: int, extents: tuple[int, ...], device: int) -> tuple[Tensor, ...]:
        """Return the zeros of a call in a graph, and tensors without memory for all else.

        It is empty if the reserve has too few zeros. The capture and the stream are keys of `of_capture`
        alone.
        """
        with Uninitialized() as uninitialized:
            tensors = self.make_tensors(*extents, torch.device("meta"))
        found, reserve = list[Tensor](), reserve_of(device)
        for tensor in tensors:
            if any(tensor is each for each in uninitialized.made):
                found.append(tensor)
            elif (zeros := reserve.take(tensor.nbytes)) is None:
                return ()
            else:
                found.append(zeros.view(tensor.dtype).view(tensor.shape))
        return (*found,)

    def in_graph(self, stream: int, extents: tuple[int, ...], device: int) -> tuple[Tensor, ...]:
        """Return memory of these extents for a call that a graph captures."""
        # Without counters, nothing has to be zero.
        capture = None if self.count_sums else capture_of(stream)
        taken = () if capture is None else self.of_capture(capture, stream, extents, device)
        gpu = torch.device("cuda", device)
        if not taken:
            return self.make_tensors(*extents, gpu)
        return tuple(
            torch.empty(each.shape, dtype=each.dtype, device=gpu) if each.is_meta else each for each in taken
        )

    def extents(self, m: int, n: int) -> tuple[int, ...]:
        """Return the extents of the memory for an M x N D; none if the kernel needs no memory."""
        if self.count_sums:
            return (self.count_sums(m, n),)
        return (m, n) if self.make_tensors else ()

    def find(self, extents: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
        """Return memory of these extents: that of the current stream, or of the graph that captures it."""
        stream = torch.cuda.current_stream(device).cuda_stream
        if is_captured(stream):
            return self.in_graph(stream, extents, device.index)
        self.reserve(device.index)
        thread = threading.get_ident() if self.is_per_thread else 0
        return self.of_stream(stream, thread, extents, device.index)[0]

    def check(self, workspace: tuple[Tensor, ...], m: int, n: int, device: torch.device) -> None:
        """Raise ValueError unless a caller's workspace is for an M x N D or a larger one, on this GPU."""
        wanted = self.make_tensors(*self.extents(m, n), torch.device("meta"))
        if workspace[-1].numel() < wanted[-1].numel():
            raise ValueError(f"workspace must be for {m} x {n}, found {workspace[-1].numel()} counters")
        for found, like in zip(workspace, wanted, strict=True):
            if (found.dtype, found.device) != (like.dtype, device) or found.numel() < like.numel():
                raise ValueError(
                    f"workspace must be from make_workspace({m}, {n}, {str(device)!r}), "
                    f"found {found.numel()} {found.dtype} on {found.device}"
                )


# --- the tensors of a call, and the checks of them


class Rows(NamedTuple):
    """The rows of a tensor as they lie in memory, in elements; a vector is one row."""

    count: int
    columns: int
    pitch: int
    """From one row to the next."""
    stride: int
    """From one element of a row to the next."""


class Place(NamedTuple):
    """The memory of a tensor."""

    address: int
    rows: int
    pitch: int
    """Bytes from one row to the next."""
    width: int
    """Bytes of a row."""


AXES = {
    "M": "rows of A and D, of each group if A has a dimension for groups",
    "N": "columns of B and D",
    "K": "columns of A and rows of B",
    "1": "a single element, or the one matrix of all groups",
    "groups": "experts or batches",
    "K / 2": "bytes with two elements of K each",
    "2N": "columns of B with N for each of two sums, or of C and D with two matrices of N columns each",
    "A rows": "rows of an A of which an index has M, some several times or never",
    "D rows": "rows of a D in which an index has the place of each of the M rows of the product",
    "K blocks": "blocks of K with a scale each, the last of which may be cut",
    "N blocks": "blocks of the columns of B with a scale each, the last of which may be cut",
    "D blocks": "blocks of the N columns of D with a scale each",
}
"""The axes of tensors with what their extents count: tensors with the same axis have the same extent."""


class Argument(NamedTuple):
    """One tensor that a kernel reads or writes."""

    name: str
    """The parameter of `matmul`."""
    dtype: torch.dtype
    axes: tuple[str, ...]
    """Its dimensions as the caller passes it, by the words of `AXES`."""
    is_moved_by_tma: bool
    """TMA moves blocks of it; threads access any other tensor by its address."""
    is_transposed: bool
    """The caller passes the transposed view of the matrix that lies in memory."""
    alignment: int
    """The bytes that its address and its row stride are multiples of."""
    is_packed: bool
    """It holds scales of blocks of K, which are packed for the tensor cores in five dimensions."""

    @property
    def row_multiple(self) -> int:
        """The elements that its row stride is a multiple of."""
        return self.alignment // self.dtype.itemsize

    @property
    def is_read_by_element(self) -> bool:
        """It holds one element, a vector, or a vector for each group, which threads read from any address."""
        return not self.is_moved_by_tma and sum(axis != "groups" for axis in self.axes) < 2

    @property
    def has_scales_of_sums(self) -> bool:
        """It holds scales of blocks of K, by which threads multiply the sums of a block."""
        return "K blocks" in self.axes and not self.is_packed

    @property
    def has_scales_of_d(self) -> bool:
        """It takes the scales of blocks of D, which the kernel computes: rows of M elements without gaps."""
        return "D blocks" in self.axes

    @property
    def is_stacked(self) -> bool:
        """It holds a matrix, or a vector, for each group."""
        return self.axes[0] == "groups" and len(self.axes) > 1

    @property
    def axes_in_memory(self) -> tuple[str, ...]:
        """The axes of the matrix that lies in memory, the contiguous one last."""
        *others, rows, columns = ("1", *self.axes)
        return (*others[1:], columns, rows) if self.is_transposed else self.axes

    def is_laid_out(self, tensor: Tensor) -> bool:
        """Return True if scales of sums lie as the kernel reads them: by address, in rows without gaps."""
        rows, stored = self.rows(tensor), self.stored(tensor)
        has_groups = stored.dim() == 3 and min(stored.shape[:2]) > 1
        is_dense = not has_groups or stored.stride(0) == stored.shape[1] * rows.pitch
        is_by_rows = self.is_moved_by_tma or rows.pitch == self.padded(rows.columns)
        return self.is_aligned(tensor) and is_dense and is_by_rows

    def stored(self, tensor: Tensor) -> Tensor:
        """Return the matrix that lies in memory: the tensor, or its transposed view if `is_transposed`."""
        if not self.is_transposed:
            return tensor
        return tensor.mT if tensor.dim() > 2 else tensor.T

    def padded(self, columns: Any) -> Any:
        """Return a number of columns, rounded up to rows of whole `alignment` bytes."""
        return -(-columns // self.row_multiple) * self.row_multiple

    def new_matrix(self, like: Tensor, *extents: Any) -> Tensor:
        """Return uninitialized memory for a matrix by rows, on the device of another tensor."""
        *rows, columns = extents
        return like.new_empty((*rows, self.padded(columns)), dtype=self.dtype)[..., :columns]

    def as_vector(self, tensor: Tensor) -> Tensor:
        """Return a single element, or a vector passed as [1, N] or [M, 1], in one dimension."""
        if self.axes == ("1",):
            return tensor if tensor.dim() == 1 else tensor.reshape(-1)
        if self.axes in (("M",), ("N",)) and tensor.dim() == 2 and 1 in tensor.shape:
            return tensor.squeeze(0 if self.axes == ("N",) else 1)
        return tensor

    @property
    def is_shared(self) -> bool:
        """All groups share its matrix, which a caller may also pass without a dimension for groups."""
        return self.axes[0] == "1" and len(self.axes) == 3

    def as_shared(self, tensor: Tensor, extents: dict[str, Any]) -> Tensor:
        """Return the one matrix that all groups share, with a first dimension of 1.

        Raises ValueError if it is expanded to another number of groups than `extents` has.
        """
        if not self.is_shared or tensor.dim() not in (2, 3):
            return tensor
        if tensor.dim() == 2:
            return tensor[None]
        if tensor.shape[0] == 1 or tensor.stride(0):
            return tensor
        if tensor.shape[0] != (groups := extents.setdefault("groups", tensor.shape[0])):
            raise ValueError(f"a and b must have the same groups, found {groups} and {tensor.shape[0]}")
        return tensor[:1]

    def rows(self, tensor: Tensor) -> Rows:
        """Return the rows of a tensor; a single row, which has no pitch, gets one that TMA takes."""
        stored = self.stored(tensor)
        if stored.dim() == 3 and stored.shape[1] == 1:  # the only row of each group
            stored = stored[:, 0]
        count, columns = (1, 1, *stored.shape)[-2:]
        pitch, stride = (0, 0, *stored.stride())[-2:]
        return Rows(count, columns, pitch if count > 1 and columns else self.padded(columns), stride)

    def is_aligned(self, tensor: Tensor) -> bool:
        """Return True if TMA can move a tensor as it lies in memory."""
        rows = self.rows(tensor)
        is_contiguous = rows.columns <= 1 or rows.stride == 1
        is_at_multiples = not (address_of(tensor) % self.alignment or rows.pitch % self.row_multiple)
        return is_contiguous and is_at_multiples and rows.pitch >= rows.columns

    def with_pitch(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the strides of its `rows`: one row may have any in torch, but not for TMA."""
        stored = self.stored(tensor)
        strides = (*stored.stride()[:-2], self.rows(tensor).pitch, 1)[-stored.dim() :]
        if not is_readable(tensor) or self.is_packed or strides == stored.stride():
            return tensor
        return self.stored(stored.as_strided(stored.shape, strides))

    def place(self, tensor: Tensor) -> Place:
        """Return the memory of a tensor, all of whose dimensions but the last one count as rows."""
        rows, size = self.rows(tensor), tensor.dtype.itemsize
        count = tensor.numel() // (rows.columns or 1)
        return Place(address_of(tensor), count, rows.pitch * size, rows.columns * size)


@dataclasses.dataclass
class Checked:
    """The facts that the checks of a call collect about its tensors."""

    device: torch.device | None = None
    """The device of the first tensor."""
    extents: dict[str, Any] = dataclasses.field(default_factory=dict)
    """By the words of `AXES`."""
    places: dict[str, Place] = dataclasses.field(default_factory=dict)
    """By the names of arguments."""
    copies: dict[str, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)
    """By the name of a misaligned input: the matrix in memory, and the aligned one that it is copied to."""


class Contract:
    """The conditions that a kernel's tensors meet, and the messages for tensors that violate one."""

    def __init__(
        self,
        arguments: Mapping[str, Mapping[str, Any]],
        tma: Collection[str],
        computes: Mapping[str, Any],
        transposed: Sequence[str],
        pack_scales: Callable[[Tensor], Tensor] | None,
        *,
        copies: bool,
        has_backward: bool,
    ) -> None:
        """Make the contract of a module by its tables, which `Host` takes too."""
        alignments = computes.get("alignment", {})
        # Tensors that the kernel writes beside D come after all that it reads.
        self.written: tuple[str, ...] = tuple(computes.get("written", ()))
        self.computes, self.inputs = computes, (*computes["inputs"], *self.written)
        self.pack_scales, self.copies, self.has_backward = pack_scales, copies, has_backward
        self.has_scales = "scale_vector" in computes
        self.arguments: dict[str, Argument] = {}
        for name in (*self.inputs, "out"):
            row = arguments[name]
            if not (isinstance(row, Mapping) and AXES.keys() >= {*row["axes"]}):
                form = f"ARGUMENTS has another form of {name} than gemmgen_launch.py"
                raise ValueError(f"{form}: generate both anew")
            is_packed = pack_scales is not None and "K blocks" in row["axes"]
            alignment = alignments.get(name, TMA_BYTES)
            self.arguments[name] = Argument(
                name, row["dtype"], row["axes"], name in tma, name in transposed, alignment, is_packed
            )
        self.scatters = "D rows" in self.arguments["out"].axes
        self.gathers = "A rows" in self.arguments["a"].axes
        self.has_wide_b = "2N" in self.arguments["b"].axes
        # Zeros are not D if the epilogue makes another value of a product of 0, or if an input divides rows
        # into groups: rows of no group stay as they are.
        has_counts = any(argument.axes == ("groups",) for argument in self.arguments.values())
        leaves_rows = has_counts and "groups" in self.arguments["b"].axes
        self.is_zero_without_k = computes.get("vanishes", True) and not leaves_rows

    def first_violation(self, given: Mapping[str, Tensor]) -> str:
        """Return the error of a call with these tensors, by name; an empty string if there is none.

        Nothing is launched, and no memory is written.
        """
        # Autograd follows the operator of a module with a backward: the kernel sees no gradients.
        is_below_autograd = self.has_backward and "out" not in given
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_below_autograd):
                inputs = (given[name] for name in self.inputs if name in given or name not in self.written)
                self.check_without_launch(*inputs, out=given.get("out"))
        except (TypeError, ValueError) as error:
            return str(error)
        return ""

    def check_without_launch(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Check all tensors of a call, and return a D without memory; raise as a call would.

        Tensors that are written beside D come last. They may be left out, as `matmul` makes them.
        """
        if self.has_more_dimensions(inputs[0]):
            return self.flattened(self.check_without_launch, inputs, out)
        _, (m, n, k), checked = self.check_inputs(inputs)
        if out is not None:
            self.find_output(inputs[0].new_empty(0, device="meta"), out, checked)
            if not out.is_meta and 0 not in (m, n, k):
                self.check_output(out, checked.places)
        if 0 not in (m, n, k):
            self.check_written(inputs, checked)
        if inputs[0].is_cuda and 0 not in (m, n, k):
            self.check_gpu(inputs[0].device)
        return torch.empty(self.extents_of_d(checked.extents), device="meta")

    def has_more_dimensions(self, a: Any) -> bool:
        """Return True for an A [..., M, K] of more dimensions than the kernel takes, which M can have."""
        if self.scatters or self.gathers:  # A or D has rows of its own
            return False
        has_rows_alone = "groups" not in self.arguments["out"].axes
        return has_rows_alone and isinstance(a, Tensor) and a.dim() > len(self.arguments["a"].axes)

    def flattened(
        self, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], out: Tensor | None
    ) -> Tensor:
        """Call with all rows of A [..., M, K] in one matrix; D [..., M, N] has the dimensions of A."""
        rows = inputs[0].shape[:-1]
        flat: list[Tensor] = []
        for name, tensor in zip(self.inputs, inputs, strict=True):
            argument = self.arguments[name]
            has_rows = argument.axes[0] == "M" and not argument.is_packed
            if has_rows and 2 < tensor.dim() == inputs[0].dim():
                # A copy of a tensor that the kernel writes would be lost.
                is_written = name in self.written
                tensor = tensor.view(-1, tensor.shape[-1]) if is_written else tensor.flatten(0, -2)
            elif argument.axes == ("M",):
                tensor = tensor.flatten()
            flat.append(tensor)
        if out is None:
            return call(*flat).unflatten(0, rows)
        if out.shape[:-1] != rows:
            raise ValueError(f"out must have shape {[*rows, 'N']}, found {[*out.shape]}")
        call(*flat, out=out.view(-1, out.shape[-1]))
        return out

    def check_inputs(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, int, int], Checked]:
        """Return the inputs as the kernel takes them, M, N and K, and all facts; raise as `check` does."""
        checked = Checked()
        arguments = (self.arguments[name] for name in self.inputs[: len(inputs)])
        passed = [self.check(*each, checked) for each in zip(arguments, inputs, strict=True)]
        return passed, self.check_extents(checked.extents), checked

    def check(self, argument: Argument, tensor: Tensor, checked: Checked) -> Tensor:
        """Return an input as the kernel takes it: itself, packed, copied, or one row with a padded stride.

        Raises TypeError for another type, and ValueError for any other violation, with the value found.
        """
        tensor = self.check_alone(argument, tensor, checked)
        if argument.is_packed and tensor.dim() == 2 and is_readable(tensor):
            return self.check(argument, self.pack_scales(tensor), checked)
        if self.is_copied(argument) and not argument.is_aligned(tensor):
            stored = argument.stored(tensor)
            matrix = stored if stored.dim() > 1 else stored[None]
            copy = argument.new_matrix(tensor, *matrix.shape)
            checked.copies[argument.name] = matrix, copy
            return self.check(argument, argument.stored(copy).view_as(tensor), checked)
        checked.places[argument.name] = argument.place(tensor)
        return argument.with_pitch(tensor)

    def check_alone(self, argument: Argument, tensor: Tensor, checked: Checked) -> Tensor:
        """Return a tensor that violates nothing, a vector in one dimension; raise as `check` does."""
        self.check_type(argument, tensor)
        tensor = argument.as_shared(argument.as_vector(tensor), checked.extents)
        refuse_first(argument.name, self.violations(argument, tensor, checked))
        return tensor

    def check_type(self, argument: Argument, tensor: Tensor) -> None:
        """Raise TypeError unless this is a dense tensor of the argument's dtype."""
        found = type(tensor).__name__
        if isinstance(tensor, Tensor):
            if (tensor.layout, tensor.dtype) == (torch.strided, argument.dtype):
                return
            layout = "" if tensor.layout == torch.strided else f"{str(tensor.layout).removeprefix('torch.')} "
            found = f"{layout}{tensor.dtype}"
        mend = f": {PACK}" if self.is_of_packed_weight(argument) else ""
        raise TypeError(f"{argument.name} must be a tensor of {argument.dtype}, found {found}{mend}")

    def is_of_packed_weight(self, argument: Argument) -> bool:
        """Return True for B and its scales if the module has a function that packs them."""
        return argument.name in ("b", "b_scale") and bool(self.computes.get("packs_weight"))

    def is_copied(self, argument: Argument) -> bool:
        """Return True if the module copies tensors of an argument that TMA cannot move."""
        return self.copies and argument.is_moved_by_tma

    def violations(self, argument: Argument, tensor: Tensor, checked: Checked) -> Iterator[str]:
        """Yield each condition that a tensor violates, the most important one first."""
        yield from self.violations_of_kind(tensor, checked)
        if is_readable(tensor) and tensor.data_ptr() == 0:
            yield f"have memory, found a {type(tensor).__name__} at 0"
        yield from self.violations_of_shape(argument, tensor, checked.extents)
        yield from self.violations_of_memory(argument, tensor)

    def violations_of_kind(self, tensor: Tensor, checked: Checked) -> Iterator[str]:
        """Yield violations of the device, of autograd and of transforms."""
        device = tensor.device
        checked.device = checked.device or device
        if device != checked.device:
            yield f"be on a's device {checked.device}, found {device}"
        if device.type not in ("cuda", "meta"):
            yield f"be on a CUDA device, found {device}"
        requires_grad = tensor.requires_grad and torch.is_grad_enabled()
        if requires_grad and not self.has_backward:
            yield "not require grad (no backward): detach it"
        if forward_ad.unpack_dual(tensor).tangent is not None:
            yield "be no forward-AD dual: there is no derivative"
        if is_transformed(tensor):
            yield "be outside of vmap, grad and jvp: there is no rule for them"
        if requires_grad and self.has_backward:  # an `out`: autograd follows inputs above this check
            yield "not require grad: out has no backward"
        if tensor.is_neg():
            yield "hold its own values, found a negated view: call resolve_neg()"

    def violations_of_shape(
        self, argument: Argument, tensor: Tensor, extents: dict[str, Any]
    ) -> Iterator[str]:
        """Yield violations of dimensions and extents; an axis that `extents` lacks is added to it."""
        shape = tuple(tensor.shape)
        if argument.is_packed:
            rows, columns = extents.get(argument.axes[0], 0), self.count_scales(extents)
            legal = [(rows, columns), (1, -(-rows // 128), -(-columns // 4), 2, 256)]
            if shape not in legal:
                yield f"have shape {' or '.join(map(str, legal))}, found {shape}"
            return
        if len(shape) != len(argument.axes):
            yield f"have {len(argument.axes)} dimensions, found shape {list(shape)}"
            return
        if argument.has_scales_of_sums:
            extents["K blocks"] = self.count_scales(extents)
            columns = extents.get("2N" if self.has_wide_b else "N", 0)
            extents["N blocks"] = -(-columns // self.computes.get("scale_columns", 1))
        if argument.has_scales_of_d:
            extents["D blocks"] = -(-self.count_columns(extents) // self.computes["d_scale_columns"])
        known = {"1": 1, **extents}
        wanted = [
            1 if axis == "1" else extents.setdefault(axis, extent)
            for axis, extent in zip(argument.axes, shape, strict=True)
        ]
        if list(shape) != wanted:
            mend = PACK if self.is_of_packed_weight(argument) else ""
            if argument.name == "b" and self.is_turned(tensor, known):
                yield f"have shape {list(tensor.mT.shape)}, found {list(shape)}: {mend or 'pass b.mT'}"
            if argument.has_scales_of_sums and list(tensor.mT[..., : wanted[-1]].shape) == wanted:
                turned = f"pass {argument.name}.mT[..., :{wanted[-1]}] if K comes first"
                yield f"have shape {wanted}, found {list(shape)}: {mend or turned}"
            yield f"have shape {wanted}, found {list(shape)}"

    def is_turned(self, b: Tensor, known: Mapping[str, Any]) -> bool:
        """Return True if b.mT would be a B that has the known extents and lies in memory as it must."""
        argument = self.arguments["b"]
        extents = zip(argument.axes, b.mT.shape, strict=True)
        fits = all(known.get(axis, extent) == extent for axis, extent in extents)
        return fits and b.stride(-1 if argument.is_transposed else -2) == 1

    def violations_of_memory(self, argument: Argument, tensor: Tensor) -> Iterator[str]:
        """Yield violations of extents, strides and the address, except those that a copy mends."""
        stored, rows = argument.stored(tensor), argument.rows(tensor)
        is_packed = argument.is_packed and stored.dim() > 2
        if is_packed and not tensor.is_contiguous():
            yield f"be contiguous, found {tensor.stride()}"
        if max(rows.count, rows.columns) > (limit := self.computes["max_extent"]):
            yield f"have extents up to {limit}, found {max(stored.shape)}"
        if argument.has_scales_of_sums:
            if 0 not in tensor.shape and not argument.is_laid_out(tensor):
                yield self.describe_scales(argument, tensor)
            return
        is_copied = self.is_copied(argument)
        # A matrix without rows may have any strides: torch 2.11 gives it 0.
        if rows.count and rows.columns > 1 and rows.stride != 1 and not is_copied:
            yield self.describe_strides(argument, tensor)
        has_groups = stored.dim() == 3 and min(stored.shape[:2]) > 1 and rows.columns > 0
        wanted = stored.shape[1] * rows.pitch if has_groups else None
        if wanted is not None and stored.stride(0) != wanted:
            yield f"have groups one behind the other, {wanted} elements apart, found {stored.stride(0)}"
        is_written_by_rows = argument.name == "out" and rows.stride == 1
        if rows.pitch < rows.columns and (is_written_by_rows or not is_copied):
            yield f"not overlap itself, found rows of {rows.columns}, {rows.pitch} apart"
        if is_copied or (argument.is_packed and not is_packed):
            return  # the kernel reads a copy
        if argument.is_read_by_element:
            if not stored.is_contiguous():
                yield f"be contiguous, found strides {tuple(stored.stride())}"
            return
        if argument.has_scales_of_d and rows.pitch != argument.padded(rows.columns):
            yield f"have blocks {argument.padded(rows.columns)} elements apart, found {rows.pitch}"
        if rows.pitch % argument.row_multiple:
            yield f"have rows a multiple of {argument.alignment} bytes apart, found {rows.pitch} elements"
        if past := address_of(tensor) % argument.alignment:
            yield f"start at a multiple of {argument.alignment} bytes, found {past} bytes past one"

    def describe_scales(self, argument: Argument, tensor: Tensor) -> str:
        """Return the violation of scales of sums that do not lie as the kernel reads them."""
        name, shape = argument.name, argument.stored(tensor).shape
        wanted = argument.stored(argument.new_matrix(tensor.new_empty(0, device="meta"), *shape)).stride()
        found = f"strides {tuple(tensor.stride())}"
        if past := address_of(tensor) % argument.alignment:
            found += f", {past} bytes past one"
        is_packed = self.is_of_packed_weight(argument)
        mend = PACK if is_packed else f'pass arrange_scales("{name}", {name})'
        is_turned = not argument.is_transposed and argument.is_laid_out(tensor.mT)
        if is_turned and not is_packed:  # a square scale_b of torch
            mend = f"pass {name}.mT if K comes first; else {mend}"
        multiple = f"at a multiple of {argument.alignment} bytes"
        return f"have strides {tuple(wanted)} {multiple}, found {found}: {mend}"

    def describe_strides(self, argument: Argument, tensor: Tensor) -> str:
        """Return the violation of a matrix whose rows are not contiguous in memory."""
        axes = argument.axes_in_memory
        found = f"lie in memory as [{', '.join(axes)}], found strides {tuple(tensor.stride())}"
        if self.is_of_packed_weight(argument):
            return f"{found}: {PACK}"
        if tensor.dim() < 2 or tensor.stride(-1 if argument.is_transposed else -2) != 1:
            return found
        # The matrix lies in memory the other way round.
        if axes[-2:] in (("N", "K"), ("2N", "K")):
            turned = "T" if len(axes) == 2 else "mT"
            return f"{found}: pass weight.{turned} of a weight [{', '.join(axes)}]"
        contiguous = f"a contiguous matrix [{', '.join(axes)}]"
        return f"{found}: pass {'the transposed view of ' if argument.is_transposed else ''}{contiguous}"

    def find_k(self, name: str, extents: dict[str, Any]) -> Any:
        """Return the K of A or of B; 0 if the extents lack it."""
        halves = "K / 2" in self.arguments[name].axes
        return 2 * extents.get("K / 2", 0) if halves else extents.get("K", 0)

    def count_scales(self, extents: dict[str, Any]) -> int:
        """Return the blocks of K, by the K of A."""
        return -(-self.find_k("a", extents) // self.computes["scale_vector"])

    def check_extents(self, extents: dict[str, Any]) -> tuple[int, int, int]:
        """Return M, N and K; raise ValueError if the kernel does not take them."""
        m, n = extents["M"], self.count_columns(extents)
        if (wide := extents.get("2N", 2 * n)) != 2 * n:
            if self.has_wide_b:
                wanted = "2 N columns, N for each sum of an element of D"
                raise ValueError(f"b must have {wanted}, found {wide}")
            raise ValueError(f"c must have 2 N = {2 * n} columns, found {wide}")
        if n % self.computes.get("n_multiple", 1):
            raise ValueError(f"N must be a multiple of {self.computes['n_multiple']}, found {n}")
        if "groups" in extents:
            self.check_groups(extents)
        if m and extents.get("A rows") == 0:
            raise ValueError("a must have a row that a_rows can name, found none")
        k, k_of_b = (self.find_k(name, extents) for name in ("a", "b"))
        multiple = self.computes.get("k_multiple", 1)
        if k != k_of_b or k % multiple:
            found = f"{k} and {k_of_b}"
            raise ValueError(f"a and b must have the same K, a multiple of {multiple}, found {found}")
        largest = self.computes.get("single_tile", (m, n, k))
        if any(extent > most for extent, most in zip((m, n, k), largest, strict=True)):
            limits = "M, N and K up to {}, {} and {}".format(*largest)
            raise ValueError(f"this kernel takes {limits}, found {m}, {n} and {k}")
        return m, n, k

    def check_groups(self, extents: dict[str, Any]) -> None:
        """Raise ValueError if the kernel does not take the groups, or a coordinate would exceed 32 bits."""
        most = self.computes.get("max_groups", self.computes["max_extent"])
        if not 1 <= (groups := extents["groups"]) <= most:
            raise ValueError(f"this kernel takes from 1 to {most} groups, found {groups}")
        stacked = (each for each in self.arguments.values() if each.is_stacked)
        rows = groups * max(extents[each.axes_in_memory[-2]] for each in stacked)
        if rows > (limit := self.computes["max_extent"]):
            raise ValueError(f"this kernel takes up to {limit} rows of all groups in memory, found {rows}")

    def extents_of_d(self, extents: dict[str, Any]) -> list[Any]:
        """Return the extents of D; without an `out` to store rows in, it has M rows."""
        known = {"D rows": extents["M"], **extents}
        return [known[axis] for axis in self.arguments["out"].axes]

    def count_columns(self, extents: dict[str, Any]) -> Any:
        """Return N, the columns of B, or half of the columns of a wide B; `extents` has it then."""
        if self.has_wide_b:
            extents["N"] = extents["2N"] // 2
        return extents["N"]

    def find_output(self, a: Tensor, out: Tensor | None, checked: Checked) -> Tensor:
        """Return memory that the kernel can write D to: `out`, or new rows of whole 16-byte units.

        New rows are copied to `out` after the launch; raises ValueError if the module copies nothing.
        """
        argument = self.arguments["out"]
        if out is None:
            return argument.new_matrix(a, *self.extents_of_d(checked.extents))
        out = self.check_alone(argument, out, checked)
        extents = self.extents_of_d(checked.extents)
        checked.places["out"] = argument.place(out)
        m, n = extents[-2:]
        is_whole = n == argument.padded(n) or not m
        if is_whole and (not self.is_copied(argument) or argument.is_aligned(out)):
            return argument.with_pitch(out)
        if not self.copies:
            raise ValueError(
                f"out must have rows of whole 16-byte units, found {n} columns: call without out"
            )
        return argument.new_matrix(a, *extents)

    def check_written(self, inputs: Sequence[Tensor], checked: Checked) -> None:
        """Raise ValueError if a tensor that is written beside D shares memory with another tensor."""
        for name, tensor in zip(self.inputs[: len(inputs)], inputs, strict=True):
            if name in self.written and not tensor.is_meta:
                self.check_output(tensor, checked.places, name)

    def check_output(self, out: Tensor, places: Mapping[str, Place], output: str = "out") -> None:
        """Refuse an inference tensor outside of inference mode, and memory that the kernel also accesses."""
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{output} must not be an inference tensor outside of inference mode")
        written = places[output]
        for name, read in places.items():
            # C may be D: each element of C is read before D has the same one.
            is_d = name == "c" and read == written and self.computes.get("d_may_be_c", True)
            if name == output or is_d or not overlap(read, written):
                continue
            does = (
                "written too" if name == "out" or name in self.written else f"read while {output} is written"
            )
            raise ValueError(f"{output} must share no memory with {name}, which is {does}")

    def check_gpu(self, device: torch.device) -> None:
        """Raise ValueError unless the kernel was compiled for this GPU's instructions."""
        gpu = torch.cuda.get_device_properties(device)
        wanted = self.computes["capability"]
        if (found := (gpu.major, gpu.minor)) != wanted:
            raise ValueError(f"this kernel needs capability {wanted}, found {gpu.name}: {found}")


def refuse_first(name: str, violations: Iterator[str]) -> None:
    """Raise ValueError with the first violation of a tensor; later ones may rely on its absence."""
    if violation := next(violations, ""):
        raise ValueError(f"{name} must {violation}")


def is_readable(tensor: Tensor) -> bool:
    """Return True if a tensor has memory to look at."""
    return not (is_transformed(tensor) or tensor.is_meta or 0 in tensor.shape)


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor; 0 if it has no memory to look at."""
    return tensor.data_ptr() if is_readable(tensor) else 0


def overlap(x: Place, y: Place) -> bool:
    """Return True if a row of one place may have a byte in common with a row of the other one."""
    is_after = x.address + (x.rows - 1) * x.pitch + x.width <= y.address
    is_before = y.address + (y.rows - 1) * y.pitch + y.width <= x.address
    # Two slices of the columns of one matrix: in each of its rows, y begins after x and ends before it.
    pitch = x.pitch if x.rows > 1 else y.pitch
    offset = (y.address - x.address) % pitch
    is_beside = (pitch == y.pitch or y.rows == 1) and x.width <= offset and offset + y.width <= pitch
    return not (is_after or is_before or is_beside)


# --- the operators of this process


class Operator:
    """The operator of one module: a call that torch sees, and the answers that torch's tracers need."""

    def __init__(self, name: str, contract: Contract, namespace: str = "gemmgen") -> None:
        """Name the operator; `define_operator` registers it."""
        self.name, self.contract, self.namespace = name, contract, namespace

    def __call__(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the D that the operator returns, or `out`, which it writes."""
        if self.contract.has_more_dimensions(inputs[0]):
            return self.contract.flattened(self, inputs, out)
        operator = getattr(getattr(torch.ops, self.namespace), self.name)
        return operator(*inputs) if out is None else operator(*inputs, out=out) or out

    def shape(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor | None:
        """Return D without memory, as a run would return it; extents may be symbols that only a run knows.

        Raises as a run with these tensors would, or with the example that torch has for each symbol.
        """
        contract = self.contract
        given = inputs if out is None else (*inputs, out)
        examples = [example_of(each) for each in given]
        if all(each is not None for each in examples):
            contract.check_without_launch(*examples[: len(inputs)], out=None if out is None else examples[-1])
        if contract.has_more_dimensions(inputs[0]):
            d = contract.flattened(lambda *flat: self.shape(*flat), inputs, None)
            return d if out is None else None
        checked = Checked()
        if all(example is each for example, each in zip(examples, given, strict=True)):
            _, _, checked = contract.check_inputs(inputs)
        else:
            for name, tensor in zip(contract.inputs, inputs, strict=True):
                self.check_symbolic(contract.arguments[name], tensor, checked)
            n, wide = contract.count_columns(checked.extents), checked.extents.get("2N")
            if wide is not None:
                is_double = wide % 2 == 0 if contract.has_wide_b else wide == 2 * n
                message = f"{'b' if contract.has_wide_b else 'c'} must have 2 N columns"
                torch._check(is_double, functools.partial(str, message))
        extents = contract.extents_of_d(checked.extents)
        return contract.arguments["out"].new_matrix(inputs[0], *extents) if out is None else None

    def check_symbolic(self, argument: Argument, tensor: Tensor, checked: Checked) -> None:
        """Check a tensor whose extents torch may not know yet: it asserts when it runs that they agree."""
        name = argument.name
        self.contract.check_type(argument, tensor)
        refuse_first(name, self.contract.violations_of_kind(tensor, checked))
        if argument.is_packed or argument.axes == ("1",):
            return
        if tensor.dim() == 2 and len(argument.axes) == 1:
            tensor = tensor.flatten()
        tensor = argument.as_shared(tensor, checked.extents)
        if tensor.dim() != len(argument.axes):
            raise ValueError(
                f"{name} must have {len(argument.axes)} dimensions, found shape {[*tensor.shape]}"
            )
        for axis, extent in zip(argument.axes, tensor.shape, strict=True):
            wanted = 1 if axis == "1" else checked.extents.setdefault(axis, extent)
            message = f"{name} must have the {axis} of the other tensors"
            torch._check(extent == wanted, functools.partial(str, message))

    def count_flops(self, a_shape: Sequence[int], b_shape: Sequence[int], *_: object, **__: object) -> int:
        """Return 2 M N K, N the columns of B, which torch's FlopCounterMode adds up."""
        if self.contract.arguments["a"].is_shared:
            a_shape = b_shape[0], *a_shape[-2:]
        elements_of_a = math.prod(a_shape) * (2 if "K / 2" in self.contract.arguments["a"].axes else 1)
        return 2 * elements_of_a * b_shape[-1]


def example_of(tensor: Tensor) -> Tensor | None:
    """Return a tensor without memory with torch's example of each extent and stride that is a symbol.

    It is the tensor itself if there is no symbol, and None if one has no example, because data decides it.
    """
    sizes = *tensor.shape, *tensor.stride()
    if all(isinstance(each, int) for each in sizes):
        return tensor
    known = [each if isinstance(each, int) else each.node.hint for each in sizes]
    if not all(isinstance(each, int) for each in known):
        return None
    count = tensor.dim()
    return torch.empty_strided(known[:count], known[count:], dtype=tensor.dtype, device="meta")


def operator_name(module: str) -> str:
    """Return the name of a module's operator, which has its package: ``pack__kernel`` for ``pack.kernel``."""
    return module.replace(".", "__").strip("_")


def operator_key(namespace: str, name: str) -> str:
    """Return the key of an operator in the table of the process; earlier releases use names alone."""
    return name if namespace == "gemmgen" else f"{namespace}::{name}"


def define_operator(
    name: str,
    inputs: Sequence[str],
    run: Callable[..., Tensor | None],
    shape: Callable[..., Tensor | None],
    backward: tuple[Callable[..., None], Callable[..., tuple[Any, ...]]] | None = None,
    *,
    count_flops: Callable[..., int],
    namespace: str = "gemmgen",
) -> None:
    """Let ``torch.ops.<namespace>.<name>`` call these functions, also from handles that torch holds already.

    Copies of this file beside several packages share the operators of a process. A module that is executed
    again keeps its operator, which calls the module executed last; with other inputs it is defined anew.

    Args:
        name: The operator's name.
        inputs: The names of its tensors, and further parameters as torch's schemas have them. The overload
            ``out`` takes `out` as well, and returns nothing.
        run: Computes, on the GPU.
        shape: Returns D without memory, for fake and meta tensors.
        backward: A function that keeps tensors for the backward, and one that computes the gradients.
        count_flops: Returns the operations of a call by the shapes of its inputs.
        namespace: Where torch has the operator.
    """
    operators = shared_in_process("operators", dict)
    kind, found = (tuple(inputs), backward is not None), getattr(torch.ops, namespace)
    key = operator_key(namespace, name)
    if key not in operators or operators[key].kind != kind:
        if operators.pop(key, None) and hasattr(found, name):  # torch has looked it up already
            delattr(found, name)
        library = torch.library.Library(namespace, "FRAGMENT")
        reads = ", ".join(each if " " in each else f"Tensor {each}" for each in inputs)
        tags = Tag.pt2_compliant_tag, Tag.needs_exact_strides
        # Each function looks up the module executed last, because torch keeps the functions it is given.
        for overload, end in ("", ") -> Tensor"), (".out", ", *, Tensor(a!) out) -> ()"):
            library.define(f"{name}{overload}({reads}{end}", tags=tags)
            library.impl(
                name + overload, lambda *a, **k: operators[key].run(*a, **k), "CompositeExplicitAutograd"
            )
            library.impl(name + overload, lambda *a, **k: operators[key].shape(*a, **k), "Meta")
        if backward:
            torch.library.register_autograd(
                f"{namespace}::{name}",
                lambda *a: operators[key].differentiate(*a),
                setup_context=lambda **k: operators[key].keep(**k),
                lib=library,
            )
        operators[key] = types.SimpleNamespace(kind=kind, library=library)
        UNCOUNTED.append((namespace, name))
    keep, differentiate = backward or (None, None)
    vars(operators[key]).update(
        run=run, shape=shape, keep=keep, differentiate=differentiate, count_flops=count_flops
    )
    if sys.modules.keys() & {"triton", "torch.utils.flop_counter"}:
        register_flop_formulas()


UNCOUNTED: list[tuple[str, str]] = []
"""Namespaces and names of operators that FlopCounterMode does not count yet: a library's are counted when its
first kernel imports Triton.
"""
UNCOUNTED_LOCK = threading.Lock()
"""Held by the thread that takes names from the list: several threads may import modules at once."""


def register_flop_formulas() -> None:
    """Let torch's FlopCounterMode count all operators; its import takes half a second without Triton's."""
    from torch.utils.flop_counter import register_flop_formula

    operators = shared_in_process("operators", dict)
    with UNCOUNTED_LOCK:
        while UNCOUNTED:
            namespace, name = UNCOUNTED.pop()
            key = operator_key(namespace, name)
            count = functools.partial(lambda key, *a, **k: operators[key].count_flops(*a, **k), key)
            count.__name__ = name  # pyright: ignore[reportAttributeAccessIssue] - which torch wraps
            register_flop_formula(getattr(getattr(torch.ops, namespace), name))(count)


def shared_in_process(name: str, make: Callable[[], Any]) -> Any:
    """Return the one object of this name that all copies of this file in the process share.

    The copies lie beside several packages, and have one Triton, and one namespace of torch's operators.
    """
    shared = sys.modules.setdefault("gemmgen_operators", types.ModuleType("gemmgen_operators"))
    return vars(shared).setdefault(name, make())
