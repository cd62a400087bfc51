"""Verification of a kernel: every check on its shapes, with the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.device import captured_graph, context_lost, require_gpu
from gemmgen.hardware import Gpu
from gemmgen.module import arrange_scales_of, matmul_of, pack_scales_of
from gemmgen.numerics.case import Case, numbers, once, special_values
from gemmgen.numerics.encoding import bits, differing, poison
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.quantized import numbers_of
from gemmgen.numerics.reference import Check
from gemmgen.problem import Matmul, Shape, shape_text
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import SpecFile
from gemmgen.verify.divisions import other_divisions
from gemmgen.verify.scales import other_scales, packed_scales
from gemmgen.verify.shapes import acceptance_shapes, large_shape, refuse_extents

Group = Callable[[Case], Iterator[Check]]
"""Checks that share their runs of the kernel."""

MORE_ROWS: Final = 200
"""Rows that are added to a shape to compute a row again, in tiles at other places."""
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


def in_place(case: Case) -> Iterator[Check]:
    """Check the numbers of a D that is written over C, as sums of gradients are."""
    inputs = case.inputs()
    kept = replace(inputs, extras={**inputs.extras, "c": inputs.extras["c"].clone()})
    if case.takes_out:
        yield from numbers(case, "in place", inputs.call(case.matmul, inputs.extras["c"]), kept)


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


def batch_invariant(case: Case) -> Iterator[Check]:
    """Check that a row has the same bits alone, among other rows, in any place, and in a larger M."""
    inputs = case.inputs()
    first = case.run(inputs).clone()
    m, n, k = case.shape
    for rows in dict.fromkeys((1, 3, m - m // 3, m + MORE_ROWS)):
        drawn = torch.randint(m, (rows,), generator=case.generator, device=case.device)
        other = replace(case, shape=(rows, n, k))
        found = other.run(_with_rows_of(inputs, drawn, other))
        count = int((bits(found) != bits(first)[drawn]).sum().item())
        yield case.check(f"batch invariance: elements that differ in {rows} rows", count, 0)


def _with_rows_of(inputs: Inputs, rows: Tensor, case: Case) -> Inputs:
    """Return arguments of a case with the rows of other inputs, each in the memory layout of the spec."""
    found = case.inputs()
    vectors = case.problem.vectors
    of_rows = {"a", "c", "a_scale", *(name for name in vectors if OPERATIONS[name].along == "m")}
    pairs = [("a", found.a, inputs.a), ("b", found.b, inputs.b)]
    pairs += [(name, found.extras[name], tensor) for name, tensor in inputs.extras.items()]
    for name, tensor, wanted in pairs:
        tensor.copy_(wanted[rows] if name in of_rows else wanted)
    return found


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
    exact = first.double()
    squares = (found.double() - exact).square().sum() / exact.square().sum()
    return squares.sqrt()


def _between_runs(case: Case) -> float:
    """Return the relative difference that two right results may have: each is as far from the exact one."""
    return 2 * case.tolerance.relative


def captured(case: Case) -> Iterator[Check]:
    """Check that a CUDA graph of one call replays to the bits of a call outside a graph (`compared`)."""
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
        # Memory for d, packed scales and copies: a later request to the driver could wait.
        case.output()
        if case.misaligned:
            case.run(inputs)
        if case.pack_scales is not None:
            inputs.packed(case.pack_scales)
        for _ in range(DELAY_PASSES):
            delay.bitwise_not_()
        for tensor, valid in zip(inputs.tensors, late, strict=True):
            tensor.copy_(valid)
        out = case.run(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    if case.deterministic:
        count = int((bits(out) != bits(first)).sum().item())
        yield case.check("side stream: elements that differ", count, 0)
    else:
        distance = _distance(out, first).item()
        yield case.check("side stream: relative difference", distance, _between_runs(case))


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


PORTABLE: Final[tuple[tuple[str, Group], ...]] = (
    ("own output", own_output),
    ("out=", given_output),
    ("strided", strided),
    ("special values", special_values),
    ("repeated", repeated),
)
"""Every group for all modules that needs no GPU, with the name that progress and failures show."""
BLOCK_SCALED: Final[tuple[tuple[str, Group], ...]] = (("packed scales", packed_scales),)
"""The group that only modules whose tensor cores read scales have; it needs no GPU either."""
OF_SOME: Final[tuple[tuple[str, Group, Callable[[Matmul], bool]], ...]] = (
    ("other scales", other_scales, lambda problem: problem.scales_sums),
    ("in place", in_place, lambda problem: problem.d_may_be_c and problem.c == problem.d),
    ("batch invariance", batch_invariant, lambda problem: problem.batch_invariant),
    ("other divisions", other_divisions, lambda problem: bool(problem.groups and problem.groups.counts)),
)
"""The groups that only some modules have, and which: they need no GPU."""
GPU_ONLY: Final[tuple[tuple[str, Group], ...]] = (("cuda graph", captured), ("side stream", streamed))
"""Every group that needs a GPU, with the name that progress and failures show."""


Device = Literal["cuda", "cpu"]
Progress = Callable[[str], None]
"""Progress callback: takes a short text about the next step."""
Groups = Sequence[tuple[str, Group]]


@dataclass(frozen=True)
class Verification:
    """Every check of one kernel on one device."""

    device: str
    """The GPU's product name."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if there were checks and all of them passed."""
        return bool(self.checks) and not self.failures

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

    Raises GemmgenError: ``bad-shapes`` for an N or a K that the operands cannot have; ``no-gpu`` if the
    device is ``cuda`` and there is no GPU that can run the spec's kernel.
    """
    chosen = default_shapes(source) if shapes is None else tuple(shapes)
    refuse_extents(source.problem, chosen)
    where = _place(device, source.request.gpu)
    groups = groups_of(source.problem, device)
    cases = _cases(module, source, chosen, where, repeats, seed, deterministic=deterministic)
    return _verification(cases, groups, where, progress)


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
    return _verification(cases, (("once", once),), where, progress)


def verify_large(module: ModuleType, source: SpecFile, *, progress: Progress = silent) -> Verification:
    """Check every element of a D that has more than 2**31; its tensors take up to 80 GB of GPU memory.

    A kernel of a single tile gets its largest D; a kernel that divides K into many parts a smaller D, whose
    partial sums have more than 2**31 elements. Raises GemmgenError (``no-gpu``) as ``verify`` does.
    """
    return verify_numbers(module, source, (large_shape(source),), progress=progress)


def default_shapes(source: SpecFile) -> tuple[Shape, ...]:
    """Return the spec's own shapes to check, then the acceptance shapes, each once.

    If the spec lists none, its own shapes are the least and the largest problem of its kernel.

    Raises GemmgenError if the spec is of a single tile, leaves its size open, and no plan is legal.
    """
    request = source.request
    own = request.check_shapes or (request.ranges.ends if request.ranges else ())
    return tuple(dict.fromkeys((*own, *acceptance_shapes(source))))


def groups_of(problem: Matmul, device: Device) -> Groups:
    """Return the groups of checks that a spec's module must pass on a device, in the order of their runs.

    The group of packed scales comes first: packing allocates memory that a later run would get instead of the
    poisoned block that is meant for D.
    """
    scaled = BLOCK_SCALED if problem.packs_scales else ()
    of_problem = tuple((name, group) for name, group, holds in OF_SOME if holds(problem))
    return (*scaled, *PORTABLE, *of_problem, *(GPU_ONLY if device == "cuda" else ()))


def run_checks(
    cases: Iterable[Case], groups: Groups, lost: Callable[[], bool], progress: Progress
) -> Iterator[Check]:
    """Run every group on every case; once a failure has ``lost`` the device, report the rest as not run."""
    cause = ""
    for case in cases:
        for name, group in groups:
            if cause:
                yield Check(case.shape, name, None, 0, f"not run: {cause}")
                continue
            progress(f"{shape_text(case.shape)} {name}")
            try:
                yield from group(case)
            except Exception as error:  # any exception of a kernel is a failed check
                detail = f"{type(error).__name__}: {_first_line(error)}"
                yield Check(case.shape, name, None, 0, detail)
                if lost():
                    cause = f"the device was lost at {shape_text(case.shape)} {name}"


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
        )
        for index, shape in enumerate(shapes)
    )


def _verification(
    cases: Iterable[Case], groups: Groups, device: torch.device, progress: Progress
) -> Verification:
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    lost = context_lost if on_gpu else lambda: False
    return Verification(name, tuple(run_checks(cases, groups, lost, progress)))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
