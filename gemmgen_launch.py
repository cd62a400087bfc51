"""Calls generated matmuls: checks tensors, launches known calls again, registers operators with torch.

gemmgen writes this file beside the modules that it generates. It needs torch and Triton, never gemmgen. A
module makes one `Host` from its tables and its `launch` function, and its `matmul` calls that:

1. While torch traces, in a mode of torch, or for a tensor with a dispatch of its own, a call goes to the
   operator ``torch.ops.gemmgen.<module>``, which torch compiles, exports and counts.
2. For a call like an earlier one, `Host.run` passes to the driver what was launched then, past Triton's
   Python.
3. Any other call is checked (`Host.check`), gets memory for D, and is launched by the module itself. What it
   launched is kept for step 2.

Step 2 alone needs private names of torch and Triton, which `PRIVATE` lists. If a release lacks one of them,
or takes other arguments, step 3 launches every call, and a warning says so once.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import _C, Tag, Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

MAX_KEPT = 16384  # launches that a module keeps; then it starts anew
MAX_STREAMS = 16  # streams whose memory a module keeps, the latest ones
TMA_BYTES = 16  # TMA takes addresses and row strides that are multiples of 16 bytes
PRIVATE = (
    "torch._C._cuda_getDevice",
    "torch._C._cuda_getCurrentRawStream",
    "torch._C._cuda_isCurrentStreamCapturing",
    "torch._C._dynamo.guards.TensorGuards",
    "torch._C._dynamo.guards._empty_strided_cuda",
    "torch.autograd.forward_ad._current_level",
    "triton.backends.nvidia.driver.CudaLauncher",
    "triton.backends.nvidia.driver.wrap_handle_tensordesc",
)


def find_private(path: str, default: Any = None) -> Any:
    """Return what has this dotted name, or the default if this release of torch or Triton lacks it."""
    first, *names = path.split(".")
    found: Any = importlib.import_module(first)
    for name in names:
        found = getattr(found, name, None)
    return default if found is None else found


# Without the first, torch's dispatcher gets every call; without the others, transforms get torch's errors.
count_modes = find_private("torch._C._len_torch_dispatch_stack", lambda: 1)
in_transform = find_private("torch._C._are_functorch_transforms_active", lambda: False)
is_transformed = find_private("torch._C._functorch.is_functorch_wrapped_tensor", lambda _: False)


@functools.lru_cache(maxsize=1024)
def have_dispatch(*types_of_tensors: type) -> bool:
    """Return whether one of these types has a ``__torch_dispatch__`` of its own, as DTensor has."""
    base = Tensor.__torch_dispatch__
    return any(getattr(each, "__torch_dispatch__", base) is not base for each in types_of_tensors)


def is_seen_by_torch(*tensors: Tensor | None) -> bool:
    """Return True while torch traces, in one of its modes, and for a tensor with a dispatch of its own."""
    return bool(is_compiling() or count_modes() or have_dispatch(*map(type, tensors)))


class Argument(NamedTuple):
    """One tensor that a kernel reads or writes."""

    dtype: torch.dtype
    axes: str
    """The letters of its extents: M, N, K, P for bytes of two elements of K each, 1 for a single element."""
    box: Sequence[int] | None
    """The elements that TMA moves at a time; None if the kernel reads the tensor by its address."""
    is_turned: bool
    """The caller passes the transposed view of the matrix that lies in memory."""
    step: int
    """The bytes that its address and its row stride are multiples of."""

    @property
    def unit(self) -> int:
        """The elements that its row stride is a multiple of."""
        return self.step // self.dtype.itemsize

    @property
    def has_blocks(self) -> bool:
        """It holds scales of blocks of K, which are packed for the tensor cores in five dimensions."""
        return self.box is not None and len(self.box) > 2

    def stored(self, tensor: Tensor) -> Tensor:
        """Return the tensor as it lies in memory, by rows."""
        return tensor.T if self.is_turned else tensor

    def padded(self, columns: Any) -> Any:
        """Return the elements of a row of so many columns in whole units."""
        return -(-columns // self.unit) * self.unit


class Place(NamedTuple):
    """The memory of a tensor."""

    address: int
    rows: int
    pitch: int
    """Bytes from one row to the next."""
    width: int
    """Bytes of a row."""


Memory = tuple[tuple[Tensor, ...], list[int]]
"""Tensors and their addresses."""
Launch = tuple[Callable[..., None], tuple[Any, ...]]
"""A function of the driver with the grid, and what it takes behind the stream."""


class Known(NamedTuple):
    """What calls with the same inputs have in common, wherever D lies."""

    is_alike: Callable[..., bool]
    """Torch's comparison of tensors with the first call's: types, dtypes, sizes, strides, dispatch keys."""
    m: int
    n: int
    columns: int
    """N, padded to rows of whole 16-byte units."""
    memory: tuple[int, ...]
    """The extents of memory for sums of parts of K; empty if the kernel needs none."""


class Checked(NamedTuple):
    """What is found out about the tensors of a call."""

    extents: dict[str, Any]
    """By the letters of axes."""
    places: dict[str, Place]
    copies: dict[int, tuple[Tensor, Tensor]]
    """By the id of a misaligned tensor: the matrix in memory, and the aligned one that it is copied to."""


class Host:
    """The host side of one generated module."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, tuple[Any, ...]],
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
    ) -> None:
        """Register the operator of a module.

        Args:
            name: The name of the module and of its operator.
            arguments: The module's ARGUMENTS: by the name of a tensor its dtype, axes and TMA box.
            computes: The module's COMPUTES, with the names of the inputs in the operator's order.
            launch: Launches the kernels for checked tensors: the inputs, D, memory for sums. Returns each
                compiled kernel with its grid and its arguments.
            transposed: The matrices that are passed as transposed views of what lies in memory by rows.
            make_workspace: Makes the memory for sums and counters of an M x N D, as every call leaves it.
            make_sums: Makes the memory for a number of sums, which one kernel leaves for a second one.
            count_sums: Returns that number for an M x N D.
            pack_scales: Packs the scales of blocks as the kernel reads them.
            copy: Copies matrices to aligned ones; only modules that take misaligned tensors have it.
            backward: A function that keeps tensors for the backward, and one that computes the gradients.
        """
        import triton  # not needed to choose a kernel

        self.hooks = triton.knobs.runtime
        steps = computes.get("alignment", {})
        self.name, self.inputs, self.launch, self.computes = name, computes["inputs"], launch, computes
        self.arguments = {
            key: Argument(*arguments[key][:3], key in transposed, steps.get(key, TMA_BYTES))
            for key in (*self.inputs, "out")
        }
        self.d_dtype = self.arguments["out"].dtype
        self.is_deterministic = computes.get("deterministic", True)
        self.has_backward, self.scale_vector = backward is not None, computes.get("scale_vector", 0)
        self.pack_scales, self.copy, self.count_sums = pack_scales, copy, count_sums
        self.keeps_memory = bool(make_workspace or make_sums)
        self.make_workspace = make_memory = make_workspace or make_sums

        def make(_stream: int, _thread: int, extents: tuple[int, ...], device: int) -> Memory:
            made = make_memory(*extents, torch.device("cuda", device))
            return made, [tensor.data_ptr() for tensor in made]

        self.memory = functools.lru_cache(MAX_STREAMS)(make)
        self.known: dict[Any, Known] = {}
        self.launches: dict[Any, list[Launch]] = {}
        define_operator(
            name, self.inputs, self.run_as_operator, self.shape, backward, count_flops=self.count_flops
        )

    # --- a call, and one like an earlier one

    def __call__(
        self, *inputs: Tensor, out: Tensor | None = None, workspace: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Return D [M, N], which is `out` if that is given."""
        # `is_seen_by_torch`, without a call of its own.
        if is_compiling() or count_modes() or have_dispatch(type(out), *map(type, inputs)):
            return self.traced(*inputs, out=out)
        if self.has_backward and self.learns(inputs):
            return self.traced(*inputs, out=out)
        return self.run(*inputs, out=out, workspace=workspace or ())

    def learns(self, inputs: tuple[Tensor, ...]) -> bool:
        """Return True if autograd follows the call; the checks refuse transforms of torch.func."""
        if not torch.is_grad_enabled() or in_transform():
            return False
        return any(getattr(each, "requires_grad", False) for each in inputs)

    def traced(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Return what the operator returns, which torch sees."""
        if inputs[0].dim() > 2:
            return self.flattened(self.traced, inputs, out)
        operator = getattr(torch.ops.gemmgen, self.name)
        return operator(*inputs) if out is None else operator(*inputs, out=out) or out

    def run(
        self,
        *inputs: Tensor,
        out: Tensor | None = None,
        workspace: tuple[Tensor, ...] = (),
        apart: bool = False,
    ) -> Tensor:
        """Launch again what an earlier call like this one launched; check and launch any other call.

        `apart` says that this call may warm up a graph, whose memory is not kept: on a stream that is not the
        default one, the memory for its sums is then its own.
        """
        tensors = (*inputs, *workspace) if out is None else (*inputs, *workspace, out)
        key, d, _held = None, out, workspace
        try:
            device = _C._cuda_getDevice()
            stream = _C._cuda_getCurrentRawStream(device)
            if self.keeps_memory:  # a graph has its own; the default stream is never captured
                apart = bool(stream) and (apart or _C._cuda_isCurrentStreamCapturing())
            mode = device, apart, forward_ad._current_level, torch.is_grad_enabled()
            key = *mode, inputs[0].shape, inputs[1].shape, *[tensor.data_ptr() for tensor in tensors]
            is_alike, m, n, columns, memory = self.known[key]
            if out is None:
                d = _C._dynamo.guards._empty_strided_cuda((m, columns), (columns, 1), self.d_dtype)
                d = d if n == columns else d[:, :n]
            places = ()
            if memory and not workspace:
                thread = threading.get_ident() if self.count_sums else 0
                _held, places = self.memory(stream, thread, memory, device)
            if not is_alike(*tensors) or self.must_look():
                raise LookupError
            launches = self.launches[is_alike, d.data_ptr(), *places]
        except (AttributeError, LookupError, RuntimeError, TypeError):
            d = _held = None  # memory that was not used is free again
        else:
            try:
                for launch, arguments in launches:
                    launch(stream, *arguments)
            except TypeError as error:
                self.known.clear()  # no later call is to fail first
                self.launches.clear()
                stop_replaying(f"the driver's launch raised {error!r}")
            else:
                if out is not None:
                    increment_version(out)  # autograd learns of the write
                return d
        return self.run_checked(inputs, out, workspace, apart, key)

    def must_look(self) -> bool:
        """Return True if Triton or torch wants to see each launch: a hook, or deterministic algorithms."""
        if self.hooks.launch_enter_hook.calls or self.hooks.launch_exit_hook.calls:
            return True
        return not self.is_deterministic and torch.are_deterministic_algorithms_enabled()

    def run_as_operator(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor | None:
        """Run a call of the operator, which returns nothing if it writes into `out`."""
        d = self.run(*inputs, out=out, apart=self.keeps_memory)
        return d if out is None else None

    # --- any other call

    def run_checked(
        self,
        inputs: tuple[Tensor, ...],
        out: Tensor | None,
        workspace: tuple[Tensor, ...],
        apart: bool,
        key: Any,
    ) -> Tensor:
        """Check a call, launch its kernels, and keep what was launched under `key`."""
        if isinstance(inputs[0], Tensor) and inputs[0].dim() > 2:
            run = functools.partial(self.run, workspace=workspace, apart=apart)
            return self.flattened(run, inputs, out)
        checked = Checked({}, {}, {})
        passed = [self.check(name, tensor, checked) for name, tensor in zip(self.inputs, inputs, strict=True)]
        a, (m, n, k) = inputs[0], self.check_extents(checked.extents)
        if k == 0 and not self.computes.get("vanishes", True) and not a.is_meta:
            if self.scale_vector:
                raise ValueError("a must have a K of 1 or more: without scales there is no product")
            return self.run(*self.zeros(m, n, a), *inputs[2:], out=out, apart=apart)  # D is not zero
        if not self.is_deterministic and not a.is_meta:
            refuse_in_deterministic_mode(self.name)
        columns = self.arguments["out"].padded(n)
        d = self.find_output(a, out, m, n, checked)
        if 0 in (m, n, k) or a.is_meta:  # nothing to multiply, or torch asks for the shape
            return (d if out is None else out).zero_()
        if out is not None:
            check_output(out, checked.places)
        check_gpu(a.device, self.computes["capability"])
        apart = apart or key is None  # without the driver's names nobody knows whether a graph is captured
        extents, memory = self.extents_of_memory(m, n), workspace
        if extents and not workspace:
            find = self.memory.__wrapped__ if apart else self.memory  # of this call alone, or of its stream
            thread = threading.get_ident() if self.count_sums else 0
            memory, _ = find(torch.cuda.current_stream(a.device).cuda_stream, thread, extents, a.device.index)
        elif workspace and workspace[-1].numel() < self.make_workspace(*extents, "meta")[-1].numel():
            raise ValueError(f"workspace must be for {m} x {n}, found {workspace[-1].numel()} counters")
        with torch.cuda.device(a.device.index):
            make_context(a.device)
            copy_all([*checked.copies.values()], self.copy)
            launched = self.launch(*passed, d, *memory)
            if out is not None and d.data_ptr() != out.data_ptr():
                copy_all([(d, out)], self.copy)
        # A launch that read a copy is not kept: the copy's memory is free after it.
        places = [tensor.data_ptr() for tensor in (*inputs, d if out is None else out)]
        if places == [tensor.data_ptr() for tensor in (*passed, d)]:
            known = Known(no_tensor, m, n, columns, () if workspace else extents)
            tensors = (*inputs, *workspace) if out is None else (*inputs, *workspace, out)
            self.keep(key, tensors, known, d, () if workspace else memory, launched)
        if out is None:
            return d
        increment_version(out)  # autograd learns of the write
        return out

    def extents_of_memory(self, m: int, n: int) -> tuple[int, ...]:
        """Return the extents of the memory that the kernels add up sums in; none if they need no memory."""
        if self.count_sums:
            return (self.count_sums(m, n),)
        return (m, n) if self.keeps_memory else ()

    def find_output(self, a: Tensor, out: Tensor | None, m: int, n: int, checked: Checked) -> Tensor:
        """Return memory that the kernel can write D to: `out`, or new rows of whole 16-byte units."""
        argument = self.arguments["out"]
        columns = argument.padded(n)
        if out is not None:
            aligned = self.check("out", out, checked)
            is_whole = n == columns or not m
            if is_whole and id(out) not in checked.copies:
                return aligned
            checked.copies.pop(id(out), None)  # not an input
            if not self.copy:
                raise ValueError(
                    f"out must have rows of whole 16-byte units, found {n} columns: call without out"
                )
        return a.new_empty((m, columns), dtype=argument.dtype)[:, :n]

    def zeros(self, m: int, n: int, a: Tensor) -> Iterator[Tensor]:
        """Yield an A and a B of zeros, in place of those with no column of K, of which TMA has no map."""
        for name, rows, columns in (("a", m, TMA_BYTES), ("b", TMA_BYTES, n)):
            argument = self.arguments[name]
            rows, columns = (columns, rows) if argument.is_turned else (rows, columns)
            padded = a.new_zeros((rows, argument.padded(columns)), dtype=argument.dtype)
            yield argument.stored(padded[:, :columns])

    def flattened(
        self, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], out: Tensor | None
    ) -> Tensor:
        """Call with all rows of A [..., M, K] one behind the other; D [..., M, N] has their dimensions."""
        rows = inputs[0].shape[:-1]
        flat: list[Tensor] = []
        for name, tensor in zip(self.inputs, inputs, strict=True):
            argument = self.arguments[name]
            if argument.axes[0] == "M" and 2 < tensor.dim() == inputs[0].dim():
                tensor = tensor.flatten(0, -2)
            elif argument.axes == "M" and not argument.has_blocks:
                tensor = tensor.flatten()
            flat.append(tensor)
        if out is None:
            return call(*flat).unflatten(0, rows)
        if out.shape[:-1] != rows:
            raise ValueError(f"out must have shape {[*rows, 'N']}, found {[*out.shape]}")
        call(*flat, out=out.view(-1, out.shape[-1]))
        return out

    def align(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor as TMA takes it: itself, or an aligned copy."""
        if name not in self.arguments:
            raise ValueError(f"name must be one of {', '.join(self.arguments)}, found {name}")
        checked = Checked({}, {}, {})
        aligned = self.check(name, tensor, checked)
        if not checked.copies:
            return tensor
        with torch.cuda.device(tensor.device.index):
            copy_all([*checked.copies.values()], self.copy)
        return aligned

    def lay_out(self, name: str, tensor: Tensor | None) -> Tensor | None:
        """Return a matrix that lies in memory as the argument of this name has to: itself, or a copy."""
        if tensor is None:
            return None
        argument = self.arguments[name]
        stored = argument.stored(tensor)
        rows, columns = stored.shape
        is_aligned = stored.stride(0) % argument.unit == 0 and tensor.storage_offset() % argument.unit == 0
        if stored.stride(1) == 1 and stored.stride(0) >= columns and (is_aligned or self.copy):
            return tensor
        padded = tensor.new_empty((rows, argument.padded(columns)))[:, :columns]
        return argument.stored(padded.copy_(stored))

    # --- what is kept

    def keep(
        self,
        key: Any,
        tensors: tuple[Tensor, ...],
        known: Known,
        d: Tensor,
        memory: tuple[Tensor, ...],
        launched: list[tuple[Any, tuple[int, ...], list[Any]]],
    ) -> None:
        """Keep what was launched, if the driver can launch it again without Triton's Python."""
        if not REPLAY.is_on or self.must_look():
            return
        if missing := [path for path in PRIVATE if find_private(path) is None]:
            if torch.version.cuda:  # else there is no GPU either
                stop_replaying(f"there is no {', '.join(missing)}")
            return
        if not key or key[:3] != (d.device.index, False, -1):  # another device, a graph's memory, forward AD
            return
        try:
            launches = [prepare_launch(*each) for each in launched]
            guards = _C._dynamo.guards.TensorGuards(
                *tensors,
                dynamic_dims_sizes=[[*tensor.shape] for tensor in tensors],
                dynamic_dims_strides=[[*tensor.stride()] for tensor in tensors],
            )
        except (AttributeError, LookupError, TypeError) as error:
            stop_replaying(f"preparing a launch raised {error!r}")
            return
        if len(self.launches) > MAX_KEPT:
            self.known.clear()
            self.launches.clear()
        earlier = self.known.get(key, known).is_alike
        # The same tensor twice is like nothing.
        is_alike = next((each for each in (earlier, guards.check) if each(*tensors)), None)
        if is_alike and None not in launches:
            self.known[key] = known._replace(is_alike=is_alike)
            self.launches[is_alike, d.data_ptr(), *[tensor.data_ptr() for tensor in memory]] = launches

    # --- checks

    def check(self, name: str, tensor: Tensor, checked: Checked) -> Tensor:
        """Return a tensor as the kernel takes it: itself, packed, copied, or one row with a padded stride.

        Raises TypeError for another type, and ValueError for any other fault, with the value that was found.
        """
        argument = self.arguments[name]
        found = isinstance(tensor, Tensor) and f"{tensor.layout} {tensor.dtype}"
        if found != f"{torch.strided} {argument.dtype}":
            raise TypeError(
                f"{name} must be strided {argument.dtype}, found {found or type(tensor).__name__}"
            )
        if argument.axes == "1":
            tensor = tensor if tensor.dim() == 1 else tensor.reshape(-1)
        elif len(argument.axes) == 1 and not argument.has_blocks and tensor.dim() == 2 and 1 in tensor.shape:
            tensor = tensor.squeeze(0 if argument.axes == "N" else 1)  # [1, N] or [M, 1]
        for fault in self.faults(name, tensor, checked):
            raise ValueError(f"{name} must {fault}")
        if argument.has_blocks and tensor.dim() == 2 and self.is_readable(tensor):
            return self.check(name, self.pack_scales(tensor), checked)
        stored = argument.stored(tensor)
        rows, columns = (1, 1, *stored.shape)[-2:]
        pitch, stride = (0, 0, *stored.stride())[-2:]
        if rows <= 1 or not columns:
            pitch = argument.padded(columns)  # of one row: any
        address = tensor.data_ptr() if self.is_readable(tensor) else 0
        size = tensor.dtype.itemsize
        checked.places[name] = Place(address, tensor.numel() // (columns or 1), pitch * size, columns * size)
        is_aligned = address % argument.step == 0 and pitch % argument.unit == 0 and pitch >= columns
        if self.copy and argument.box and not (is_aligned and (columns <= 1 or stride == 1)):
            matrix = stored if stored.dim() > 1 else stored[None]
            aligned = tensor.new_empty((matrix.shape[0], argument.padded(columns)))[:, :columns]
            _, copy = checked.copies.setdefault(id(tensor), (matrix, aligned))
            if name == "out":  # which is copied to when D is there
                return tensor
            return self.check(name, argument.stored(copy).view_as(tensor), checked)
        strides = (*stored.stride()[:-2], pitch, 1)[-stored.dim() :]
        if not address or argument.has_blocks or strides == stored.stride():
            return tensor
        return argument.stored(stored.as_strided(stored.shape, strides))

    def is_readable(self, tensor: Tensor) -> bool:
        """Return True if a tensor has memory to look at."""
        return not (is_transformed(tensor) or tensor.is_meta or 0 in tensor.shape)

    def faults(self, name: str, tensor: Tensor, checked: Checked) -> Iterator[str]:
        """Yield what is wrong with a tensor, the most important first."""
        argument, extents = self.arguments[name], checked.extents
        yield from self.faults_of_kind(tensor, extents)
        is_readable = self.is_readable(tensor)
        address = tensor.data_ptr() if is_readable else None
        if address == 0:
            yield f"have memory, found a {type(tensor).__name__} at 0"
        yield from self.faults_of_shape(name, tensor, extents)
        stored = argument.stored(tensor)
        if stored.dim() > 2:  # scales that are packed
            if not tensor.is_contiguous():
                yield f"be contiguous, found {tensor.stride()}"
            rows, columns, pitch, stride = 1, 256, 256, 1
        else:
            rows, columns = (1, 1, *stored.shape)[-2:]
            pitch, stride = (0, 0, *stored.stride())[-2:]
        if not rows <= (limit := self.computes["max_extent"]) >= columns:
            yield f"have extents up to {limit}, found {max(stored.shape)}"
        is_copied = self.copy and argument.box
        if columns > 1 and stride != 1 and not is_copied:
            yield self.describe_strides(name, tensor)
        is_written_by_rows = name == "out" and stride == 1
        if rows > 1 and columns and pitch < columns and (is_written_by_rows or not is_copied):
            yield f"not overlap itself, found rows of {columns}, {pitch} apart"
        if is_copied:
            return
        if argument.has_blocks and stored.dim() == 2:
            return  # packing copies them
        if rows > 1 and columns and pitch % argument.unit:
            yield f"have rows a multiple of {argument.step} bytes apart, found {pitch} elements"
        if address and argument.axes != "1" and (past := address % argument.step):
            yield f"start at a multiple of {argument.step} bytes, found {past} bytes past one"

    def faults_of_kind(self, tensor: Tensor, extents: dict[str, Any]) -> Iterator[str]:
        """Yield faults of the device, and of what autograd and transforms would do with a tensor."""
        device = tensor.device
        if device != extents.setdefault("device", device):
            yield f"be on a's device {extents['device']}, found {device}"
        if device.type not in ("cuda", "meta"):
            yield f"be on a CUDA device, found {device}"
        is_followed = tensor.requires_grad and torch.is_grad_enabled()
        if is_followed and not self.has_backward:
            yield "not require grad (no backward): detach it"
        if forward_ad.unpack_dual(tensor).tangent is not None:
            yield "be no forward-AD dual: there is no derivative"
        if is_transformed(tensor):
            yield "be outside of vmap, grad and jvp: there is no rule for them"
        if is_followed and self.has_backward:
            yield "not require grad: out has no backward"
        if tensor.is_neg():
            yield "hold its own values, found a negated view: call resolve_neg()"

    def faults_of_shape(self, name: str, tensor: Tensor, extents: dict[str, Any]) -> Iterator[str]:
        """Yield faults of dimensions and extents; `extents` learns those of axes that it does not have."""
        argument, shape = self.arguments[name], tuple(tensor.shape)
        if argument.has_blocks:
            rows, columns = extents.get(argument.axes, 0), self.count_scales(extents)
            legal = [(rows, columns), (1, -(-rows // 128), -(-columns // 4), 2, 256)]
            if shape not in legal:
                yield f"have shape {' or '.join(map(str, legal))}, found {shape}"
            return
        if len(shape) != len(argument.axes):
            yield f"have {len(argument.axes)} dimensions, found shape {list(shape)}"
            return
        wanted = [
            1 if axis == "1" else extents.setdefault(axis, extent)
            for axis, extent in zip(argument.axes, shape, strict=True)
        ]
        if list(shape) != wanted:
            yield f"have shape {wanted}, found {list(shape)}"

    def count_scales(self, extents: dict[str, Any]) -> int:
        """Return the blocks of K, by the K of A."""
        k = 2 * extents.get("P", 0) if "P" in self.arguments["a"].axes else extents.get("K", 0)
        return -(-k // self.scale_vector)

    def describe_strides(self, name: str, tensor: Tensor) -> str:
        """Return what is wrong with a matrix whose rows are not contiguous in memory."""
        argument = self.arguments[name]
        axes = argument.axes[::-1] if argument.is_turned else argument.axes
        found = f"lie in memory as {' x '.join(axes)}, found strides {tuple(tensor.stride())}"
        if tensor.dim() != 2 or tensor.stride(1 if argument.is_turned else 0) != 1:
            return found
        # It lies the other way round.
        if axes == "NK":
            return f"{found}: pass weight.T of an N x K weight"
        contiguous = f"a contiguous {' x '.join(axes)} matrix"
        return f"{found}: pass {'the transposed view of ' if argument.is_turned else ''}{contiguous}"

    def check_extents(self, extents: dict[str, Any]) -> tuple[int, int, int]:
        """Return M, N and K; raise ValueError if the kernel does not take them."""
        m, n, packed = extents["M"], extents["N"], 2 * extents.get("P", 0)
        k = extents.get("K", packed)
        axes = self.arguments["a"].axes + self.arguments["b"].axes
        if "P" in axes and "K" in axes and (packed != k or k % self.computes["k_multiple"]):
            found = f"{packed} and {k}" if "P" in self.arguments["a"].axes else f"{k} and {packed}"
            multiple = self.computes["k_multiple"]
            raise ValueError(f"a and b must have the same K, a multiple of {multiple}, found {found}")
        largest = self.computes.get("single_tile", (m, n, k))
        if any(extent > most for extent, most in zip((m, n, k), largest, strict=True)):
            limits = "M, N and K up to {}, {} and {}".format(*largest)
            raise ValueError(f"this kernel takes {limits}, found {m}, {n} and {k}")
        return m, n, k

    def fault(self, given: Mapping[str, Tensor]) -> str:
        """Return what a call would say of these tensors, by name; an empty string if it takes them.

        Nothing is launched, and no memory is written.
        """
        # Autograd follows the operator of a module with a backward: the kernel sees no gradients.
        below = self.has_backward and "out" not in given
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not below):
                self.judge(*(given[name] for name in self.inputs), out=given.get("out"))
        except (TypeError, ValueError) as error:
            return str(error)
        return ""

    def judge(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Check all tensors of a call, and return a D without memory."""
        if isinstance(inputs[0], Tensor) and inputs[0].dim() > 2:
            return self.flattened(self.judge, inputs, out)
        checked = Checked({}, {}, {})
        for name, tensor in zip(self.inputs, inputs, strict=True):
            self.check(name, tensor, checked)
        m, n, k = self.check_extents(checked.extents)
        if out is not None:
            self.find_output(inputs[0].new_empty(0, device="meta"), out, m, n, checked)
            if not out.is_meta and 0 not in (m, n, k):
                check_output(out, checked.places)
        if inputs[0].is_cuda and 0 not in (m, n, k):
            check_gpu(inputs[0].device, self.computes["capability"])
        return torch.empty((m, n), device="meta")

    # --- what torch's tracers ask

    def shape(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor | None:
        """Return D without memory, as `run` would return it; extents may be symbols that only a run knows."""
        if inputs[0].dim() > 2:
            d = self.flattened(lambda *flat: self.shape(*flat), inputs, None)
            return d if out is None else None
        is_symbolic = any(not isinstance(extent, int) for each in inputs for extent in each.shape)
        checked = Checked({}, {}, {})
        for name, tensor in zip(self.inputs, inputs, strict=True):
            if is_symbolic:
                self.check_symbolic(name, tensor, checked.extents)
            else:
                self.check(name, tensor, checked)
        if not is_symbolic:
            self.check_extents(checked.extents)
        m, n = checked.extents["M"], checked.extents["N"]
        if out is not None:
            return None
        return inputs[0].new_empty((m, self.arguments["out"].padded(n)), dtype=self.d_dtype)[:, :n]

    def check_symbolic(self, name: str, tensor: Tensor, extents: dict[str, Any]) -> None:
        """Check a tensor whose extents torch may not know yet: it asserts when it runs that they agree."""
        argument = self.arguments[name]
        if tensor.dtype != argument.dtype:
            raise TypeError(f"{name} must be strided {argument.dtype}, found {tensor.layout} {tensor.dtype}")
        for fault in self.faults_of_kind(tensor, extents):
            raise ValueError(f"{name} must {fault}")
        if argument.has_blocks or argument.axes == "1":
            return
        if tensor.dim() == 2 and len(argument.axes) == 1:
            tensor = tensor.flatten()
        if tensor.dim() != len(argument.axes):
            raise ValueError(
                f"{name} must have {len(argument.axes)} dimensions, found shape {[*tensor.shape]}"
            )
        for axis, extent in zip(argument.axes, tensor.shape, strict=True):
            wanted = extents.setdefault(axis, extent)
            message = f"{name} must have the {axis} of the other tensors"
            torch._check(extent == wanted, functools.partial(str, message))

    def count_flops(self, a_shape: Sequence[int], b_shape: Sequence[int], *_: object, **__: object) -> int:
        """Return 2 M N K, which torch's FlopCounterMode adds up."""
        k = a_shape[-1] * (2 if "P" in self.arguments["a"].axes else 1)
        rows = 1
        for extent in a_shape[:-1]:
            rows *= extent
        return 2 * rows * b_shape[-1] * k


# --- checks of a whole call


def check_output(out: Tensor, places: Mapping[str, Place]) -> None:
    """Refuse an inference tensor outside of inference mode, and memory that the kernel also reads."""
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError("out must not be an inference tensor outside of inference mode")
    written = places["out"]
    for name, read in places.items():
        # C may be D: each element of C is read before D has the same one.
        if name == "out" or (name == "c" and read == written) or not overlap(read, written):
            continue
        raise ValueError(f"out must share no memory with {name}, which is read while out is written")


def overlap(x: Place, y: Place) -> bool:
    """Return True if a row of one place may have a byte in common with a row of the other one."""
    is_behind = x.address + (x.rows - 1) * x.pitch + x.width <= y.address
    is_before = y.address + (y.rows - 1) * y.pitch + y.width <= x.address
    # Some columns of a matrix and others of the same one have rows that lie side by side.
    pitch = x.pitch if x.rows > 1 else y.pitch
    is_beside = (pitch == y.pitch or y.rows == 1) and x.width <= (
        y.address - x.address
    ) % pitch <= pitch - y.width
    return not (is_behind or is_before or is_beside)


def check_gpu(device: torch.device, capability: tuple[int, int]) -> None:
    """Raise ValueError unless the kernel was compiled for this GPU's instructions."""
    gpu = torch.cuda.get_device_properties(device)
    if (found := (gpu.major, gpu.minor)) != capability:
        raise ValueError(f"this kernel needs capability {capability}, found {gpu.name}: {found}")


def refuse_in_deterministic_mode(name: str) -> None:
    """Do with sums in any order what torch does with its own in ``use_deterministic_algorithms(True)``."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"{name} has no deterministic implementation: it adds up sums in any order"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}; torch.use_deterministic_algorithms(True) is set")
    warnings.warn(message, stacklevel=6)  # the caller of matmul


# --- the driver


def make_context(device: torch.device) -> None:
    """Give this thread a CUDA context, without which no tensor map can be made."""
    driver = find_private("triton.runtime.driver.active.utils")
    if hasattr(driver, "set_current_device"):
        driver.set_current_device(device.index)
    else:
        torch.cuda.synchronize(device)


def copy_all(pairs: list[tuple[Tensor, Tensor]], copy: Callable[..., None] | None) -> None:
    """Copy each first matrix to the second one, by the module's kernel if its rows are contiguous."""
    by_rows = [pair for pair in pairs if pair[0].shape[-1] == 1 or pair[0].stride(-1) == 1]
    if by_rows and copy:
        copy(by_rows)
    for source, target in pairs:
        if not any(source is each for each, _ in by_rows):
            target.copy_(source)


def prepare_launch(kernel: Any, grid: tuple[int, ...], arguments: list[Any]) -> Launch | None:
    """Return what launches a compiled kernel again on a stream; None if Triton has to do so.

    Triton launches kernels that take memory of its own, or are instrumented. No tensor is kept alive.
    """
    nvidia = find_private("triton.backends.nvidia.driver")
    run = getattr(kernel, "run", None)
    if type(run) is not nvidia.CudaLauncher:
        return None
    if run.gsan_enabled or run.global_scratch_size or run.profile_scratch_size:
        return None
    maps = getattr(kernel.metadata, "tensordesc_meta", None)
    encode = nvidia.wrap_handle_tensordesc(list, kernel.src.signature, maps)
    encoded = encode([each.data_ptr() if isinstance(each, Tensor) else each for each in arguments])
    options = kernel.function, run.launch_cooperative_grid, run.launch_pdl, kernel.packed_metadata
    # Behind the options: metadata of the launch, hooks and scratch memory, all of which there are none.
    passed = *options, *[None] * 5, run.arg_annotations, run.kernel_signature, encoded
    return functools.partial(find_private("triton.runtime.driver.active.utils.launch"), *grid), passed


REPLAY = types.SimpleNamespace(is_on=True)


def stop_replaying(reason: str) -> None:
    """Let Triton launch every call from now on, and say so, once."""
    if REPLAY.is_on:
        REPLAY.is_on = False
        versions = f"torch {torch.__version__} with Triton {find_private('triton.__version__')}"
        message = f"gemmgen_launch does not know {versions}: {reason}"
        warnings.warn(
            f"{message}. Each call is launched by Triton's Python, which takes longer.", stacklevel=4
        )


def no_tensor(*_: Tensor) -> bool:
    """Return False: no tensors are like those of a call that is not kept yet."""
    return False


# --- the operators of this process


def define_operator(
    name: str,
    inputs: Sequence[str],
    run: Callable[..., Tensor | None],
    shape: Callable[..., Tensor | None],
    backward: tuple[Callable[..., None], Callable[..., tuple[Any, ...]]] | None = None,
    *,
    count_flops: Callable[..., int],
) -> None:
    """Let ``torch.ops.gemmgen.<name>`` call these functions, also from handles that torch holds already.

    Copies of this file beside several packages share the operators of a process. One with the same inputs is
    defined once, and calls the module that was executed last; one with others is defined anew.

    Args:
        name: The operator's name.
        inputs: The names of its tensors; the overload ``out`` takes `out` as well, and returns nothing.
        run: Computes, on the GPU.
        shape: Returns D without memory, for fake and meta tensors.
        backward: A function that keeps tensors for the backward, and one that computes the gradients.
        count_flops: Returns the operations of a call by the shapes of its inputs.
    """
    operators = operators_of_process()
    kind = tuple(inputs), backward is not None
    if name not in operators or operators[name].kind != kind:
        operators.pop(name, None)  # and with it what torch holds of an operator with other inputs
        vars(torch.ops.gemmgen).pop(name, None)  # torch keeps operators here that were looked up
        library = torch.library.Library("gemmgen", "FRAGMENT")
        reads = ", ".join(f"Tensor {each}" for each in inputs)
        tags = Tag.pt2_compliant_tag, Tag.needs_exact_strides
        for overload, end in ("", ") -> Tensor"), (".out", ", *, Tensor(a!) out) -> ()"):
            library.define(f"{name}{overload}({reads}{end}", tags=tags)
            library.impl(
                name + overload, lambda *a, **k: operators[name].run(*a, **k), "CompositeExplicitAutograd"
            )
            library.impl(name + overload, lambda *a, **k: operators[name].shape(*a, **k), "Meta")
        if backward:
            torch.library.register_autograd(
                f"gemmgen::{name}",
                lambda *a: operators[name].backward[1](*a),
                setup_context=lambda **k: operators[name].backward[0](**k),
                lib=library,
            )
        operators[name] = types.SimpleNamespace(kind=kind, library=library)
        UNCOUNTED.append(name)
    vars(operators[name]).update(run=run, shape=shape, backward=backward, count_flops=count_flops)

    if "triton" in sys.modules:
        register_flop_formulas()


UNCOUNTED: list[str] = []


def register_flop_formulas() -> None:
    """Let torch's FlopCounterMode count all operators; its import takes half a second without Triton's."""
    from torch.utils.flop_counter import register_flop_formula

    operators = operators_of_process()
    while UNCOUNTED:
        name = UNCOUNTED.pop()
        count = functools.partial(lambda name, *a, **k: operators[name].count_flops(*a, **k), name)
        count.__name__ = name  # pyright: ignore[reportAttributeAccessIssue] - which torch wraps
        register_flop_formula(getattr(torch.ops.gemmgen, name))(count)


def operators_of_process() -> dict[str, Any]:
    """Return what is known of each operator, by name, to all copies of this file."""
    return vars(torch.ops.gemmgen).setdefault("gemmgen_launch", {})
