"""Verification of a kernel: every check on its shapes, with the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.device import (
    OUT_OF_MEMORY,
    captured_graph,
    context_lost,
    free_bytes,
    is_out_of_memory,
    memory_text,
    require_gpu,
)
from gemmgen.features.checking import sides_of
from gemmgen.hardware import Gpu
from gemmgen.module import arrange_scales_of, matmul_of, pack_scales_of
from gemmgen.numerics.case import Case, numbers, once, special_values, workspace_bytes
from gemmgen.numerics.encoding import bits, count_differing, differing, pieces, poison
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.quantized import numbers_of
from gemmgen.numerics.reference import Check
from gemmgen.numerics.side import TWO_RUNS, CheckGroup, Held
from gemmgen.problem import Matmul, Shape, shape_text
from gemmgen.spec import SpecFile
from gemmgen.verify.memory import ACCEPTANCE_BYTES, Room, Unfit, fitted, needed_bytes
from gemmgen.verify.shapes import acceptance_shapes, large_shape, refuse_extents

DELAY_BYTES: Final = 256 << 20
DELAY_PASSES: Final = 50
"""Passes over the delay buffer, 0.5 GB of traffic each: 6 ms at 4.3 TB/s, while a launch takes 0.03 ms."""


def own_output(case: Case) -> Iterator[Check]:
    """Check the D that the wrapper allocates: its shape, dtype and strides, and its numbers."""
    inputs = case.inputs()
    out = case.run_alone(inputs)
    m, n, _ = case.shape
    kind = (tuple(out.shape), out.dtype, out.device)
    wrong_kind = kind != (case.d_shape, case.d_dtype, inputs.a.device)
    row_major = (n == 1 or out.stride(-1) == 1) and (m == 1 or out.stride(-2) >= n)
    yield case.check("own output: wrong shape, dtype or device", wrong_kind, 0)
    yield case.check("own output: not row-major", not row_major, 0)
    yield from numbers(case, "own output", out, inputs)


def given_output(case: Case) -> Iterator[Check]:
    """Check that a poisoned ``out`` is returned, is written everywhere, and has the right numbers.

    An ``out`` that TMA cannot write must be refused instead.
    """
    inputs = case.inputs()
    if not case.takes_out:
        yield from _refused(case, inputs)
        return
    out = case.output()
    returned = inputs.call(case.matmul, out.view)
    yield case.check("out=: not what is returned", not _same_memory(returned, out.view), 0)
    yield from numbers(case, "out=", out.view, inputs)


def strided(case: Case) -> Iterator[Check]:
    """Check views in wider storage: poison surrounds the inputs, and the memory around D must not change.

    If the wrapper has no ``out``, it allocates D.
    """
    inputs = case.inputs(guarded=True)
    if not case.takes_out:
        yield from numbers(case, "strided", case.run_alone(inputs), inputs)
        return
    out = case.output(guarded=True)
    inputs.call(case.matmul, out.view)
    yield case.check("strided: elements written outside", out.written_outside, 0)
    yield from numbers(case, "strided", out.view, inputs)


def repeated(case: Case) -> Iterator[Check]:
    """Check that further runs on the same inputs give the same bits, each into fresh poison (`compared`).

    The host does not wait for the device between runs, so each run also meets the state that the previous one
    left.
    """
    inputs = case.inputs()
    yield from compared(case, "repeated", case.run(inputs).clone(), lambda: case.run(inputs))


def compared(case: Case, label: str, first: Tensor, run: Callable[[], Tensor]) -> Iterator[Check]:
    """Run ``case.repeats`` times, each into poison; count the runs with other bits than ``first``.

    If the order of sums may differ from run to run, the check is the greatest distance instead.
    """
    if case.deterministic:
        differs = [differing(run(), first) for _ in range(case.repeats)]
        count = int(torch.stack(differs).sum().item())
        yield case.check(f"{label}: runs of {case.repeats} that differ", count, 0)
        return
    distances = [_distance(run(), first) for _ in range(case.repeats)]
    furthest = torch.stack(distances).max().item()
    yield case.check(f"{label}: relative difference of {case.repeats} runs", furthest, _between_runs(case))


def _distance(found: Tensor, first: Tensor) -> Tensor:
    """Return the norm of a difference over that of ``first``; NaN if either contains one."""
    of_error: list[Tensor] = []
    of_first: list[Tensor] = []
    for one, other in pieces(found, first):
        exact = other.double()
        of_error.append(one.double().sub_(exact).square_().sum())
        of_first.append(exact.square_().sum())
    return (torch.stack(of_error).sum() / torch.stack(of_first).sum()).sqrt()


def _between_runs(case: Case) -> float:
    """Return the relative difference that two right results may have: each is as far from the exact one."""
    return 2 * case.tolerance.relative


def captured(case: Case) -> Iterator[Check]:
    """Check that a CUDA graph of one call replays to the bits of a call outside a graph (`compared`)."""
    inputs = case.inputs()
    first = case.run(inputs).clone()
    torch.cuda.empty_cache()  # torch frees nothing for another tensor while it captures
    with captured_graph() as graph:
        out = inputs.call(case.matmul)

    def replay() -> Tensor:
        out.fill_(poison(out.dtype))
        graph.replay()
        return out

    yield from compared(case, "cuda graph", first, replay)


def streamed(case: Case) -> Iterator[Check]:
    """Check that a call under another stream runs on it.

    The inputs become valid on that stream only after a delay: each bit of them is inverted before it and
    after it, in place, since copies would need as much memory. A kernel launched elsewhere would read other
    numbers.
    """
    # Before the run, whose D is freed: the other stream needs all of that memory.
    delay = torch.ones(DELAY_BYTES, dtype=torch.uint8, device=case.device)
    inputs = case.inputs()
    first = case.run(inputs).clone()
    _invert(inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Memory for d, packed scales and copies: a later request to the driver could wait.
        case.output()
        if case.misaligned:
            case.run(inputs)
        if case.pack_scales is not None:
            inputs.packed(case.pack_scales)
        for _ in range(DELAY_PASSES):
            delay.bitwise_not_()
        _invert(inputs)
        out = case.run(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    if case.deterministic:
        yield case.check("side stream: elements that differ", count_differing(out, first), 0)
    else:
        distance = _distance(out, first).item()
        yield case.check("side stream: relative difference", distance, _between_runs(case))


def _invert(inputs: Inputs) -> None:
    """Invert each bit of the inputs; twice, and they are as before. Numbers of rows become negative."""
    for tensor in inputs.tensors:
        bits(tensor).bitwise_not_()


def _refused(case: Case, inputs: Inputs) -> Iterator[Check]:
    """Check that an ``out`` is refused, and nothing of it or around it written."""
    out = case.output(guarded=True)
    accepted = True
    try:
        inputs.call(case.matmul, out.view)
    except ValueError:
        accepted = False
    yield case.check("out=: accepted, though TMA cannot write it alone", accepted, 0)
    if accepted:
        yield case.check("out=: elements written outside", out.written_outside, 0)
    else:
        yield case.check("out=: elements written though refused", out.written, 0)


def _same_memory(left: Tensor, right: Tensor) -> bool:
    same_layout = left.shape == right.shape and left.stride() == right.stride()
    return same_layout and left.data_ptr() == right.data_ptr()


PORTABLE: Final = (
    CheckGroup("own output", own_output),
    CheckGroup("out=", given_output),
    CheckGroup("strided", strided),
    CheckGroup("special values", special_values),
    CheckGroup("repeated", repeated, TWO_RUNS),
)
"""Every group for all modules that needs no GPU."""
GPU_ONLY: Final = (
    CheckGroup("cuda graph", captured, Held(outputs=2, workspaces=2)),
    CheckGroup("side stream", streamed, Held(outputs=2, workspaces=2, other_bytes=DELAY_BYTES)),
)
"""Every group that needs a GPU."""
ONCE: Final = CheckGroup("once", once)
"""One run whose numbers are checked."""


Device = Literal["cuda", "cpu"]
Progress = Callable[[str], None]
"""Progress callback: takes a short text about the next step."""
Groups = Sequence[CheckGroup]


@dataclass(frozen=True)
class Verification:
    """Every check of one kernel on one device."""

    device: str
    """The GPU's product name."""
    checks: tuple[Check, ...]
    unfit: tuple[Unfit, ...] = ()
    """The shapes that were left out, or checked with fewer groups, for lack of memory."""

    @property
    def passed(self) -> bool:
        """True if there were checks and all of them passed; False if all shapes were left out."""
        return bool(self.checks) and not self.failures

    @property
    def left_out(self) -> tuple[Unfit, ...]:
        """The shapes that were not checked."""
        return tuple(each for each in self.unfit if each.groups is None)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass, in the order in which they were made."""
        return tuple(check for check in self.checks if not check.passed)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "device": self.device,
            "passed": self.passed,
            "checks": [check.as_dict() for check in self.checks],
            "unfit": [each.as_dict() for each in self.unfit],
        }


def silent(_: str) -> None:
    """Report no progress."""


def verify(
    module: ModuleType,
    source: SpecFile,
    shapes: Iterable[Shape] | None = None,
    *,
    repeats: int = 50,
    seed: int = 0,
    device: Device = "cuda",
    deterministic: bool = True,
    progress: Progress = silent,
) -> Verification:
    """Check the module's matmul on each shape [M, N, K].

    The checks: its numbers, its writes, strides, NaN and infinities, repetition, packed scales against plain
    ones, scales of other strides, and for a batch-invariant spec that a row's bits depend neither on other
    rows nor on M. Repeated runs must be equal to the bit, or, if the plan is not ``deterministic``, within
    rounding.

    Without ``shapes``, the spec's ``check`` or else the ends of its ``problem`` are used, and then the
    acceptance shapes. On ``cuda`` the module also runs under a CUDA graph and on a side stream; ``cpu`` is
    for modules that compute there. A kernel that raises, or destroys the CUDA context, is a failed check; a
    kernel that never returns is not detected.

    A shape whose checks need more memory than is free on the GPU is checked with fewer groups, or left out:
    ``unfit`` of the result has these shapes. Acceptance shapes have as many groups as fit in
    `ACCEPTANCE_BYTES`. If the memory
    does not suffice all the same, the check has the fault ``out-of-memory``.

    Raises GemmgenError: ``bad-shapes`` for an N or a K that the operands cannot have; ``no-gpu`` if the
    device is ``cuda`` and there is no GPU that can run the spec's kernel.
    """
    chosen = default_shapes(source) if shapes is None else tuple(shapes)
    refuse_extents(source.problem, chosen)
    where = _place(device, source.request.gpu)
    groups = groups_of(source.problem, device)
    cases = _cases(module, source, chosen, where, repeats, seed, deterministic=deterministic)
    limited = set(chosen) - set(own_shapes(source)) if shapes is None else set[Shape]()
    return _verification(cases, groups, where, progress, limited)


def verify_numbers(
    module: ModuleType,
    source: SpecFile,
    shapes: Iterable[Shape],
    *,
    seed: int = 0,
    device: Device = "cuda",
    progress: Progress = silent,
) -> Verification:
    """Check, in one run on each shape [M, N, K], that a poisoned D is written everywhere and right.

    For runs too slow or too large for ``verify``. Raises GemmgenError as ``verify`` does.
    """
    chosen = tuple(shapes)
    refuse_extents(source.problem, chosen)
    where = _place(device, source.request.gpu)
    cases = _cases(module, source, chosen, where, 1, seed, deterministic=True)  # and no run to compare
    return _verification(cases, (ONCE,), where, progress)


def verify_large(module: ModuleType, source: SpecFile, *, progress: Progress = silent) -> Verification:
    """Check every element of a D that has more than 2**31; its tensors take up to 80 GB of GPU memory.

    Where less is free, the shape is left out, and the result has no check. A kernel of a single tile gets
    its largest D; a kernel that divides K into many parts a smaller D, whose partial sums have more than
    2**31 elements. Raises GemmgenError (``no-gpu``) as ``verify`` does.
    """
    return verify_numbers(module, source, (large_shape(source),), progress=progress)


def default_shapes(source: SpecFile) -> tuple[Shape, ...]:
    """Return the spec's own shapes to check, then the acceptance shapes, each once.

    If the spec lists none, its own shapes are the least and the largest problem of its kernel.

    Raises GemmgenError if the spec is of a single tile, leaves its size open, and no plan is legal.
    """
    return tuple(dict.fromkeys((*own_shapes(source), *acceptance_shapes(source))))


def own_shapes(source: SpecFile) -> tuple[Shape, ...]:
    """Return the shapes that a spec lists to check, or else the ends of its ``problem``."""
    request = source.request
    return tuple(request.check_shapes or (request.ranges.ends if request.ranges else ()))


def groups_of(problem: Matmul, device: Device) -> Groups:
    """Return the groups of checks that a spec's module must pass on a device, in the order of their runs.

    Groups of features come after the groups for all modules, or before them if they must.
    """
    own = tuple(group for side in sides_of(problem) for group in side.check_groups())
    first, last = (tuple(group for group in own if group.first == is_first) for is_first in (True, False))
    return (*first, *PORTABLE, *last, *(GPU_ONLY if device == "cuda" else ()))


def run_checks(
    cases: Iterable[Case],
    groups: Groups,
    lost: Callable[[], bool],
    progress: Progress,
    room: Callable[[Case], Room | None] = lambda _: None,
) -> Iterator[Check | Unfit]:
    """Run every group on every case; once a failure has ``lost`` the device, report the rest as not run.

    A case has the room that `room` returns just before it is run; the shapes that need more are yielded too,
    before the checks of the cases that run instead.
    """
    cause, helds = "", tuple(group.held for group in groups)
    for given in cases:
        case, unfit = (given, None) if cause else fitted(given, helds, room(given))
        if unfit is not None:
            progress(str(unfit))
            yield unfit
        if case is None:
            continue
        for group in groups:
            if cause:
                yield Check(case.shape, group.name, None, 0, f"not run: {cause}")
                continue
            progress(f"{shape_text(case.shape)} {group.name}")
            failed: Check | None = None
            try:
                if case.device.type == "cuda":
                    # Else a small tensor may lie in a large block that the group before left, and the rest of
                    # that block is lost: torch gives back only blocks that are free as a whole.
                    torch.cuda.empty_cache()
                yield from group.checks(case)
            except Exception as error:  # any exception of a kernel is a failed check
                failed = _failed(case, group, error)
            if failed is None:
                continue
            yield failed
            if lost():
                cause = f"the device was lost at {shape_text(case.shape)} {group.name}"


def _failed(case: Case, group: CheckGroup, error: Exception) -> Check:
    """Return the check that an exception stands for."""
    if is_out_of_memory(error):
        detail = memory_text(error, needed_bytes(case, (group.held,)))
        return Check(case.shape, group.name, None, 0, detail, OUT_OF_MEMORY)
    detail = f"{type(error).__name__}: {_first_line(error)}"
    return Check(case.shape, group.name, None, 0, detail)


def _place(device: Device, gpu: Gpu) -> torch.device:
    return require_gpu(gpu.architecture) if device == "cuda" else torch.device("cpu")


def _cases(
    module: ModuleType,
    source: SpecFile,
    shapes: Sequence[Shape],
    device: torch.device,
    repeats: int,
    seed: int,
    *,
    deterministic: bool,
) -> tuple[Case, ...]:
    # All generators before the first kernel runs: a lost device cannot make one.
    return tuple(
        Case(
            matmul=numbers_of(matmul_of(module), source.problem),
            shape=shape,
            problem=source.problem,
            generator=torch.Generator(device).manual_seed(seed + index),
            repeats=repeats,
            pack_scales=pack_scales_of(module),
            arrange_scales=arrange_scales_of(module),
            misaligned=source.problem.copies_misaligned,
            deterministic=deterministic,
            promote_k=source.promote_k,
            sides=sides_of(source.problem),
            workspace_bytes=workspace_bytes(module, source.problem, source.problem.extents_of_d(*shape[:2])),
        )
        for index, shape in enumerate(shapes)
    )


def _verification(
    cases: Iterable[Case],
    groups: Groups,
    device: torch.device,
    progress: Progress,
    limited: Collection[Shape] = (),
) -> Verification:
    """Run the checks on a device; the ``limited`` shapes have as many groups as fit in ACCEPTANCE_BYTES."""

    def room(case: Case) -> Room | None:
        free = free_bytes(device)
        return None if free is None else Room(free, ACCEPTANCE_BYTES if case.shape in limited else None)

    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    lost = context_lost if on_gpu else lambda: False
    found = tuple(run_checks(cases, groups, lost, progress, room))
    checks = tuple(each for each in found if isinstance(each, Check))
    return Verification(name, checks, tuple(each for each in found if isinstance(each, Unfit)))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
