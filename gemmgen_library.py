"""The calls of a library: finds the kernel for the sizes of a call, and launches it.

gemmgen writes this file beside the modules of a library, and into packs of libraries, with gemmgen_table.py,
which chooses among the kernels. The package makes a `Library` when it is imported, which imports none of its
kernels, and its `matmul` calls that:

1. While torch traces, in a mode of torch, or for a tensor with a dispatch of its own, a call goes to the
   operator ``torch.ops.gemmgen.<package>``, which chooses when it runs.
2. A call with the sizes, strides and types of an earlier one of its thread is launched again by the
   parameters of that one (`KnownCalls`), whichever kernel that was.
3. For other shapes `Table.choose` names the kernel, whose module is imported for its first call, and checks
   the tensors.
"""

from __future__ import annotations

import importlib
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

if TYPE_CHECKING or not __package__:  # at the top level of gemmgen, which has the files that a library copies
    from gemmgen_launch import (
        TMA_BYTES,
        Host,
        KnownCalls,
        count_modes,
        define_operator,
        have_dispatch,
        operator_name,
    )
    from gemmgen_table import Argument, Table, check_sizes
    from gemmgen_tuning import Tuner, default_folder
else:
    from .gemmgen_launch import (
        TMA_BYTES,
        Host,
        KnownCalls,
        count_modes,
        define_operator,
        have_dispatch,
        operator_name,
    )
    from .gemmgen_table import Argument, Table, check_sizes
    from .gemmgen_tuning import Tuner, default_folder

MOST_CHOSEN = 4096  # choices that a library keeps; then it starts anew


class Library:
    """The kernels of one package."""

    def __init__(self, package: str, namespace: str = "gemmgen", *, is_compiled: bool = False) -> None:
        """Read table.json beside a package, and register the operator of the package.

        Args:
            package: The package's ``__name__``, from which its operator is named.
            namespace: Where torch has the operator: ``torch.ops.<namespace>.<package>``.
            is_compiled: True in a pack, whose kernels need no Triton.

        Raises TableError if table.json is missing or cut, or has another format.
        """
        self.__module__ = package  # where pickle finds it, by the name that `__reduce__` returns
        self.package, self.namespace, self.operator_name = package, namespace, operator_name(package)
        self.table = table = Table(Path(str(sys.modules[package].__file__)).with_name("table.json"))
        self.arguments = table.arguments
        self.a, self.b, self.out = (table.arguments[name] for name in ("a", "b", "out"))
        # An A of more dimensions has rows in all of them, unless D has groups, or rows of its own.
        self.flattens = self.out.axes[0] == "M"
        # The input with the sizes of groups, and the first input whose shape says how many there are.
        self.counts = next((name for name in table.inputs if self.arguments[name].axes == ("groups",)), "")
        firsts = (self.arguments[name].axes[0] for name in table.inputs)
        stacked = (place for place, axis in enumerate(firsts) if axis == "groups")
        self.place_of_groups = next(stacked, 1)
        self.chosen: dict[Any, Host] = {}  # by what the choice depends on
        self.hosts: dict[str, Host] = {}
        self.known = KnownCalls(
            [argument.dtype for argument in table.arguments.values()],
            written=0,
            is_deterministic=not table.unordered,
            is_compiled=is_compiled,
        )
        hint = ("int? expected_m=None",) * table.expects_rows
        define_operator(
            self.operator_name,
            (*table.inputs, *hint),
            self.run_as_operator,
            self.shape_of_d,
            count_flops=count_flops,
            namespace=namespace,
        )

    # --- a call

    def call(self, *inputs: Any, out: Tensor | None = None, expected_m: int | None = None) -> Tensor:
        """Return D, which is `out` if that is given, by the kernel for the sizes of the inputs."""
        if is_compiling() or count_modes():
            return self.traced(*inputs, out=out, expected_m=expected_m)
        d, key = self.known.launch(inputs, out, more=(expected_m,))
        return self.call_unknown(inputs, out, expected_m, key) if d is None else d

    def again(self, *inputs: Tensor) -> Tensor | None:
        """Launch a call whose like was launched before, and return its D; return None for any other call.

        Nothing is checked or raised, so a caller asks this first and calls in full if it is None.
        """
        return self.known.again(inputs, more=(None,))

    def __reduce__(self) -> str:
        """Let a copy or a pickle have the package's own object, which is `library` in each package."""
        return "library"

    def call_unknown(
        self, inputs: tuple[Any, ...], out: Tensor | None, expected_m: int | None, key: Any
    ) -> Tensor:
        """Return D of a call without a known launch: no tensor with a dispatch of its own has one."""
        if have_dispatch(type(out), *map(type, inputs)):
            return self.traced(*inputs, out=out, expected_m=expected_m)
        run = self.host_for(inputs, expected_m).run
        if key is None:
            return run(*inputs, out=out)
        return run(*inputs, out=out, note=partial(self.known.keep, key))

    def host_for(self, inputs: Sequence[Any], expected_m: int | None, *, times: bool = True) -> Host:
        """Return the host side of the kernel for a call, and keep the choice.

        The first kernel takes empty tensors, and refuses tensors that are no matrices. Without `times` no
        kernel is timed with these tensors.
        """
        sizes = self.sizes_of(inputs)
        if sizes is None or 0 in sizes:
            return self.host_of(self.table.kernels[0])
        device, hint = inputs[0].get_device(), (expected_m,) * self.table.expects_rows
        key = *sizes, *hint, device, torch.are_deterministic_algorithms_enabled()
        if (host := self.chosen.get(key)) is None:
            gpu = torch.cuda.get_device_name(device) if device >= 0 else None
            is_due = self.tune(inputs, expected_m, gpu, times=times)
            host = self.host_of(self.table.choose(*sizes, *hint, gpu=gpu).kernel)
            if len(self.chosen) >= MOST_CHOSEN:
                self.chosen.clear()
            if not is_due:
                self.chosen[key] = host
        return host

    def tune(self, inputs: Sequence[Any], expected_m: int | None, gpu: str | None, *, times: bool) -> bool:
        """Time kernels with the tensors of a call, if that is wanted and their sizes are new.

        Return True if a later call is to time them, as without `times`, and if a graph captures this one: the
        choice is then not kept.
        """
        table, found = self.table, self.sizes_of(inputs)
        if table.tuner is None or gpu is None or found is None:
            return False
        (m, n, k), count = found[:3], found[3] if table.groups else None
        sizes = table.in_planned_groups((m, n, k), count, expected_m)
        if len(names := table.untimed(sizes, gpu)) < 2:
            return False
        if not times or torch.cuda.is_current_stream_capturing():
            return True
        launches = {name: partial(self.host_of(name).run, *inputs) for name in names}
        # Without memory for another D and for overwriting L2, the rule chooses.
        with torch.cuda.device(inputs[0].device), torch.inference_mode(), suppress(torch.OutOfMemoryError):
            table.tuner.time(gpu, sizes, launches)
        return False

    def sizes_of(self, inputs: Sequence[Any]) -> tuple[int, ...] | None:
        """Return M, N and K of a call, and its groups if it has any; None if its tensors have other ranks."""
        a, b, groups = *inputs[:2], inputs[self.place_of_groups]
        if not all(isinstance(each, Tensor) and each.dim() for each in (a, b, groups)):
            return None
        more = a.dim() - len(self.a.axes)
        if b.dim() != len(self.b.axes) or more < 0 or (more and not self.flattens):
            return None
        m = math.prod(a.shape[:-1]) if self.flattens else a.shape[-2]
        sizes = m, b.shape[-1] // self.table.columns_of_b, b.shape[-2]
        return (*sizes, groups.shape[0]) if self.table.groups else sizes

    def host_of(self, name: str) -> Host:
        """Return the host side of a kernel, which asks no more whether torch looks at a call."""
        if (host := self.hosts.get(name)) is None:
            host = self.hosts[name] = self.module_of(name).call
        return host

    def module_of(self, name: str) -> Any:
        """Import the module of a kernel."""
        return importlib.import_module(f".{name}", self.package)

    # --- the operator, which torch.compile, torch.export and AOTInductor trace

    @property
    def operator(self) -> Any:
        """The one operator of all kernels."""
        return getattr(getattr(torch.ops, self.namespace), self.operator_name)

    def traced(self, *inputs: Any, out: Tensor | None = None, expected_m: int | None = None) -> Tensor:
        """Call the operator, which torch sees."""
        if self.flattens and inputs[0].dim() > len(self.a.axes):
            return self.host_of(self.table.kernels[0]).contract.flattened(self.traced, inputs, out)
        operator = self.operator
        given = (*inputs, expected_m) if self.table.expects_rows else inputs
        return operator(*given) if out is None else operator(*given, out=out) or out

    def run_as_operator(self, *given: Any, out: Tensor | None = None) -> Tensor | None:
        """Choose and launch; nothing is returned if D is written into `out`."""
        inputs = given[: len(self.table.inputs)]
        expected_m = given[-1] if len(given) > len(inputs) else None
        return self.host_for(inputs, expected_m).run_as_operator(*inputs, out=out)

    def shape_of_d(self, a: Tensor, b: Tensor, *others: Any, out: Tensor | None = None) -> Tensor | None:
        """Return D without memory; a kernel says when it runs what else it refuses."""
        for name, tensor in ("a", a), ("b", b):
            argument = self.arguments[name]
            if tensor.dtype != argument.dtype:
                raise TypeError(f"{name} must be {argument.dtype}, found {tensor.dtype}")
            if tensor.dim() != len(argument.axes):
                wanted = f"{len(argument.axes)} dimensions"
                raise ValueError(f"{name} must have {wanted}, found shape {list(tensor.shape)}")
        m, k = a.shape[-2:]
        if b.shape[-2] != k:
            raise ValueError(f"b must have {k} rows, as many as a has columns, found {b.shape[-2]}")
        n = b.shape[-1] // self.table.columns_of_b
        extents = {"groups": (a, b, *others)[self.place_of_groups].shape[0], "M": m, "D rows": m}
        rows, unit = [extents[axis] for axis in self.out.axes[:-1]], unit_of(self.out)
        padded = -(-n // unit) * unit
        d = a.new_empty((*rows, padded), dtype=self.out.dtype)[..., :n]
        return d if out is None else None

    # --- before a call

    @property
    def computes(self) -> dict[str, Any]:
        """The inputs, the epilogue, and the elements that share a scale, as a module has them in COMPUTES."""
        found: dict[str, Any] = {"inputs": self.table.inputs, "epilogue": self.table.epilogue}
        if self.table.scale_vector:
            found["scale_vector"], found["scale_columns"] = self.table.scale_vector, self.table.scale_columns
            found["out_dtype"] = self.out.dtype
        return found

    def tune_on_first_use(
        self, top: int = 3, budget_ms: float = 20.0, *, folder: str | Path | None = None
    ) -> None:
        """Let the first call with sizes that the table does not have time the `top` kernels of the rule.

        Later calls with such sizes take the fastest one, also in later processes. All M that round up to one
        multiple of a sixteenth of the next power of two count as one. A call in a CUDA graph's capture times
        nothing: call `warmup` before it. With a `top` of 0 nothing is timed any more, and the rule chooses.
        Sizes that were timed are not timed again: remove the file for that.

        Args:
            top: How many kernels are timed.
            budget_ms: The time on the GPU for new sizes, after a first launch of each kernel.
            folder: Where times are kept: by default ``tuned`` in the folder that GEMMGEN_CACHE_DIR names, or
                in ``gemmgen`` of the user's cache.

        Raises ValueError for a `top` of 1 or less, other than 0, for a budget that is not above 0, and for a
        folder that is a file.
        """
        top, budget_ms = operator.index(top), float(budget_ms)
        if top < 0 or top == 1 or budget_ms <= 0:
            raise ValueError(
                f"top must be 0, or 2 or more, and budget_ms above 0, found {top} and {budget_ms}"
            )
        table, kept = self.table, Path(folder) if folder else default_folder()
        if kept.exists() and not kept.is_dir():
            raise ValueError(f"folder must be a folder, found the file {kept}")
        stem = f"{table.package}-{table.digest}"
        table.tuner = Tuner(stem, table.kernels, top, budget_ms, kept) if top else None
        self.chosen.clear()
        self.known.forget()

    def accept_table(self, accept: bool = True) -> None:
        """Let measurements count on GPUs that they were not made on, or not any more."""
        self.table.is_accepted = accept
        self.chosen.clear()
        self.known.forget()

    def arrange_scales(self, name: str, scales: Tensor) -> Tensor:
        """Return a_scale or b_scale of any strides as `matmul` takes them: themselves, or a copy to keep."""
        return self.module_of(self.table.kernels[0]).arrange_scales(name, scales)

    def warmup(
        self,
        shapes: Iterable[tuple[int, int, int]],
        *,
        groups: int | None = None,
        expected_m: int | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        """Compile and load the kernels of sizes (M, N, K) on a GPU, by a call of `matmul` with each.

        The tensors have any values. Call it before a CUDA graph is captured, or before the first request: a
        capture cannot compile. If torch's deterministic mode is on, kernels are chosen as they are in it.
        """
        for shape in shapes:
            if not is_shape(shape) or len(shape) != 3:
                raise TypeError(f"shapes must be triples (M, N, K), found {shape!r}")
            m, n, k = shape
            check_sizes(m, n, k)
            extents = self.extents_of(m, n, k, self.table.count_groups(groups))
            inputs = [self.new_input(name, extents, device) for name in self.table.inputs]
            if self.table.groups and self.table.tuner:
                # These groups are empty, so nothing is timed: the first call with rows does that.
                self.host_for(inputs, expected_m, times=False).run(*inputs)
            else:
                self.call(*inputs, expected_m=expected_m)

    def can_implement(
        self,
        a_shape: Sequence[int],
        b_shape: Sequence[int],
        a_dtype: torch.dtype | None = None,
        b_dtype: torch.dtype | None = None,
        *,
        groups: int | None = None,
        expected_m: int | None = None,
    ) -> tuple[bool, str]:
        """Return True if `matmul` takes matrices of these shapes and dtypes with no gaps between rows.

        The second value is the reason for a refusal, or the kernel that would run. Only shapes and dtypes are
        judged, by default the dtypes of the kernels: tensors have to be in memory as `matmul` says, at
        multiples of 16 bytes. `groups` is the number of groups if they divide K, since A and B then do not
        have it, and `expected_m` is as in `matmul`. Raises TypeError for shapes that are no sequences.
        """
        if not (is_shape(a_shape) and is_shape(b_shape)):
            raise TypeError(f"a_shape and b_shape must be shapes, found {a_shape!r} and {b_shape!r}")
        found = dict[str, int]()
        if self.place_of_groups > 1:
            found["groups"] = self.table.count_groups(groups)
        dtypes = a_dtype or self.a.dtype, b_dtype or self.b.dtype
        for reason in self.violations({"a": a_shape, "b": b_shape}, dtypes, found):
            return False, reason
        m, n, k = found["M"], found["N"], found["K"]
        if not m:
            return True, "nothing is computed, because M is 0"
        return True, self.table.explain(m, n, k, found.get("groups"), expected_m)

    def violations(
        self, shapes: Mapping[str, Sequence[int]], dtypes: Sequence[torch.dtype], found: dict[str, int]
    ) -> Iterator[str]:
        """Yield each reason for which no kernel takes such an A and B; `found` gets their extents by axes."""
        table = self.table
        for (name, shape), dtype in zip(shapes.items(), dtypes, strict=True):
            argument = self.arguments[name]
            if dtype != argument.dtype:
                yield f"{name} must be {argument.dtype}, found {dtype}"
            if len(shape) != len(argument.axes):
                wanted = f"the dimensions [{', '.join(argument.axes)}]"
                yield f"{name} must have {wanted}, found shape {list(shape)}"
            for axis, extent in zip(argument.axes, shape, strict=True):
                if extent < (axis != "M"):  # `matmul` returns an empty D for an A without rows
                    yield f"{name} must have elements, found shape {list(shape)}"
                if extent > table.max_extent:
                    yield f"{name} must have extents up to {table.max_extent}, found {extent}"
                if found.setdefault(axis, extent) != extent:
                    wanted = f"{found[axis]} groups" if axis == "groups" else f"a {axis} of {found[axis]}"
                    yield f"{name} must have {wanted}, found {extent}"
        yield from self.violations_of_groups(found)
        yield from () if table.copies else self.violations_of_rows(found)
        columns = found[self.b.axes[-1]]
        if columns % table.columns_of_b:
            wanted = f"{table.columns_of_b} N columns, N for each sum of an element of D"
            yield f"b must have {wanted}, found {columns}"
        n = found["N"] = columns // table.columns_of_b
        if n % table.n_multiple:
            yield f"N must be a multiple of {table.n_multiple}, found {n}"

    def violations_of_groups(self, found: Mapping[str, int]) -> Iterator[str]:
        """Yield a reason if there are too many groups, or too many rows of all groups in one matrix."""
        if "groups" not in found:
            return
        m, n, k, groups = (found[axis] for axis in ("M", self.b.axes[-1], "K", "groups"))
        if groups > self.table.most_groups:
            yield f"there must be up to {self.table.most_groups} groups, found {groups}"
        stacked = (each for each in (self.a, self.b, self.out) if each.axes[0] == "groups")
        rows = groups * max(found[each.axes[-1 if each.is_transposed else -2]] for each in stacked)
        if rows > self.table.max_extent:
            limit = f"M, N, K and the rows of all groups in memory must be up to {self.table.max_extent}"
            yield f"{limit}, found {m}, {n}, {k} and {rows}"

    def violations_of_rows(self, found: Mapping[str, int]) -> Iterator[str]:
        """Yield a reason for each extent along which rows of A or B are no multiples of `TMA_BYTES`."""
        names = dict[tuple[str, int], list[str]]()
        for name, argument in ("a", self.a), ("b", self.b):
            along = argument.axes[-2 if argument.is_transposed else -1]
            names.setdefault((along, unit_of(argument)), []).append(name)
        for (axis, unit), which in names.items():
            if found[axis] % unit:
                rows = f"rows of {' and '.join(which)} have whole {TMA_BYTES}-byte units"
                yield f"{axis} must be a multiple of {unit}, as {rows}, found {found[axis]}"

    def extents_of(self, m: int, n: int, k: int, groups: int) -> dict[str, int]:
        """Return the extents of all axes of a problem."""
        table, columns = self.table, self.table.columns_of_b * n
        found = {"M": m, "N": n, "K": k, "groups": groups, "1": 1, self.b.axes[-1]: columns}
        if table.scale_vector:
            found["K blocks"] = -(-k // table.scale_vector)
            found["N blocks"] = -(-columns // table.scale_columns)
        return found

    def new_input(self, name: str, extents: Mapping[str, int], device: torch.device | str) -> Tensor:
        """Return a tensor without values that is in memory as kernels read it; all groups are empty."""
        argument, shape = self.arguments[name], [extents[axis] for axis in self.arguments[name].axes]
        if name == self.counts:
            return torch.zeros(shape, dtype=argument.dtype, device=device)
        if argument.is_transposed:
            shape[-2:] = shape[-1], shape[-2]
        made = torch.empty(shape, dtype=argument.dtype, device=device)
        made = made.mT if argument.is_transposed else made
        return self.arrange_scales(name, made) if "K blocks" in argument.axes else made


def is_shape(given: object) -> bool:
    """Return True for extents, and False for a single number."""
    return isinstance(given, Sequence)


def count_flops(a_shape: Sequence[int], b_shape: Sequence[int], *_: object, **__: object) -> int:
    """Return what torch's FlopCounterMode adds up: 2 operations for each element of A and column of B."""
    return 2 * math.prod(a_shape) * b_shape[-1]


def unit_of(argument: Argument) -> int:
    """Return the elements of `TMA_BYTES`."""
    return TMA_BYTES // argument.dtype.itemsize
