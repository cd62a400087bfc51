"""Module text to machine code, measured and held against the plan; no GPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gemmgen import cache, triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.hardware.gpus import round_up
from gemmgen.launch_facts import CompiledKernel, KernelFacts, Passed
from gemmgen.module import import_generated
from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered, judge
from gemmgen.plan.verdicts import Verdict
from gemmgen.planner import family_for
from gemmgen.processes.scratch import scratch
from gemmgen.processes.workers import run_in_worker
from gemmgen.python_source import is_self_contained

TRITON_TYPES = {dtype.torch: dtype.triton for dtype in DTYPES.values()}
"""Element types as a signature spells them, by what torch calls them."""


def signature_of(module: ModuleType, sums: str = "torch.float32") -> dict[str, str]:
    """Return the type of each argument of a module's ``matmul_kernel``, by name.

    ``x_desc`` is a TMA descriptor with the dtype of ``ARGUMENTS["x"]`` and the block of ``TMA["x"]``
    (``"out"`` for D); ``x_ptr`` is a pointer to elements of that dtype, or of the part of a workspace that is
    called x; `sums` is the dtype of those that a second kernel adds up.
    """
    return _signature(module, module.matmul_kernel, sums)


def _signature(module: ModuleType, kernel: Any, sums: str) -> dict[str, str]:
    """Return the types of a kernel's arguments by name: descriptors, pointers, and numbers for all others."""
    table: dict[str, Mapping[str, Any]] = {"partials": {"dtype": sums}}
    table |= {name: {**row, **module.TMA.get(name, {})} for name, row in module.ARGUMENTS.items()}
    if make := getattr(module, "make_workspace", None):
        workspace = zip(("partials", "counters"), make(1, 1, "meta"), strict=False)
        table |= {name: {"dtype": tensor.dtype} for name, tensor in workspace}
    names: list[str] = list(kernel.arg_names)
    return {argument: _type_of(argument, table) for argument in names}


def _type_of(argument: str, table: Mapping[str, Mapping[str, Any]]) -> str:
    name, _, kind = argument.rpartition("_")
    if kind not in ("ptr", "desc"):
        return "i64" if kind == "stride" else "i32"
    row = table[{"d": "out", "d_scale": "out_scale"}.get(name, name)]
    element = TRITON_TYPES[str(row["dtype"])]
    if kind == "ptr":
        return f"*{element}"
    return f"tensordesc<{element}[{','.join(map(str, row['block_shape']))}],{row['layout']!r}>"


STAGES = ("ttgir", "llir", "ptx", "cubin", "sass")
"""Artifacts of the compiler, in their order; the last one is disassembled on request."""

REDUCTION = "reduction"
"""The start of the names of the files of the kernel that adds up the sums of parts of K."""

TIMEOUT_SECONDS = 300
"""A kernel of this family compiles in three seconds; what takes longer than this hangs."""


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel, as the compiler reports them."""

    smem_bytes: int
    warps: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    tmem_columns: int
    mmas: tuple[str, ...]
    """Distinct matrix instructions as PTX spells them: of wgmma the shape, then the types of D, A and B; of
    tcgen05 the CTAs and the kind."""
    operations: Mapping[str, int]
    """How often each of ``OPERATIONS`` is in the PTX; the body of a loop is there once."""
    traps: bool
    """True if the compiler gave up and made the kernel trap."""
    setmaxnreg: tuple[int, ...]
    """Distinct register counts of `setmaxnreg`, ascending."""
    multicast_loads: int
    """TMA loads in the PTX that write into other CTAs of the cluster."""
    ptxas_notes: tuple[str, ...]
    """Warnings of the C75xx family: MMAs serialized, register requests ignored."""
    launch_registers: int | None = None
    """Registers per thread that the launch is limited to; None if it has no limit."""
    reduction_smem_bytes: int | None = None
    """Bytes of shared memory of the reduction kernel of split-K, None if there is no such kernel."""
    registers: int = 0
    """Registers per thread with which the module's kernels are compiled, of two the higher number."""

    @property
    def spilled_bytes(self) -> int:
        """Bytes per thread that do not fit into registers."""
        return max(self.spill_store_bytes, self.spill_load_bytes, self.stack_bytes)


OPERATIONS = {
    "tcgen05.mma": r"tcgen05\.mma\.",
    "tcgen05.cp": r"tcgen05\.cp\.",
    "tcgen05.commit": r"tcgen05\.commit\.",
    "TMA load": r"cp\.async\.bulk\.tensor\.\dd\S*\.mbarrier::complete_tx",
    "TMA store": r"cp\.async\.bulk\.tensor\.\dd\.global\.shared",
    "mbarrier wait": r"mbarrier\.try_wait",
    "mbarrier arrive": r"mbarrier\.arrive\.shared",
    "mbarrier expect": r"mbarrier\.arrive\.expect_tx",
    "launch control": r"clusterlaunchcontrol\.try_cancel",
}
"""Operations whose number a plan promises, with the pattern of each in PTX."""


@dataclass(frozen=True)
class Lowered:
    """The artifacts of one kernel by stage, and its resources."""

    artifacts: dict[str, bytes]
    resources: Resources
    reduction_ptx: bytes | None = None
    """PTX of the kernel that adds up the sums of parts of K, None for a module without one."""
    kernels: tuple[CompiledKernel, ...] = ()
    """The module's kernels with the facts of a launch, in the order in which they are launched."""


def lower(
    source: str, plan: Kernel, *, path: str, stem: str, begun: Callable[[], None] = lambda: None
) -> Lowered:
    """Compile a module's text for the plan's architecture and confirm the plan.

    `path` is the spec that diagnostics name, `stem` the module's name. `begun` is called once the
    process that compiles is forked, unless the cache has the result.

    Raises:
        ShortageError: The registers of a role do not hold all that it works with.
        GemmgenError: The compiler refuses the kernel, or the compiled kernel differs from the plan.
    """
    lowered = _compile(source, plan, begun, path=path, stem=stem)
    differences = tuple(_differences(plan, lowered.resources))
    if differences:
        diagnostics = [Diagnostic(path, "plan-differs", difference) for difference in differences]
        verdict = verdict_on(plan, lowered.resources)
        raise GemmgenError(diagnostics) if verdict.fits else ShortageError(diagnostics, verdict)
    return lowered


class ShortageError(GemmgenError):
    """The compiler made the planned kernel, but a role's registers do not hold all that it works with."""

    def __init__(self, diagnostics: Iterable[Diagnostic], verdict: Verdict) -> None:
        super().__init__(diagnostics)
        self.verdict = verdict
        """The compiler's verdict on the registers."""


def verdict_on(plan: Kernel, found: Resources) -> Verdict:
    """Return the compiler's verdict on the registers of a plan's kernel."""
    return Verdict(found.registers, found.spilled_bytes, tuple(sorted(_unexpected_notes(plan, found))))


def _unexpected_notes(plan: Kernel, found: Resources) -> dict[str, str]:
    """Return ptxas's notes by their numbers, without those that it is known to give of such a kernel."""
    numbered = {note[1:6]: note for note in found.ptxas_notes}  # a note begins with its number in parentheses
    return {number: note for number, note in numbered.items() if number not in plan.ptxas_notes}


def _compile(source: str, plan: Kernel, begun: Callable[[], None], *, path: str, stem: str) -> Lowered:
    """Compile a module, or take from the cache what came of it before."""
    triton_api.require()
    capability, sums = plan.architecture.compute_capability, plan.problem.accumulator.torch
    library = triton_api.installed_directory()
    identity = triton_api.identity(library) if library and is_self_contained(source) else None
    revision = cache.revision(Path(__file__), Path(triton_api.__file__))
    key = cache.key_of(("lowered", revision, identity, capability, stem, source)) if identity else None
    return cache.cached(
        key, lambda: _in_child(source, capability, sums, begun, path=path, stem=stem), _lowered_of
    )


def _lowered_of(files: cache.Files) -> Lowered:
    """Return the lowered kernel in the parts of a cache entry.

    Raises:
        LookupError, TypeError, ValueError, RuntimeError: A part is missing, or not as the compiler writes it.
    """
    artifacts = {stage: files[stage] for stage in STAGES if stage != "sass"}
    figures = {name: int(value) for name, value in json.loads(files["figures"]).items()}
    resources = _measure(artifacts["ptx"].decode(), files["ptxas"].decode(), figures)
    first, *second = map(KernelFacts.from_dict, json.loads(files["facts"]))
    kernels = [CompiledKernel(first, artifacts["ptx"].decode(), artifacts["cubin"])]
    for facts in second:
        ptx, cubin = (files[f"{REDUCTION}.{stage}"] for stage in ("ptx", "cubin"))
        kernels.append(CompiledKernel(facts, ptx.decode(), cubin))
    return Lowered(artifacts, resources, files.get(f"{REDUCTION}.ptx"), tuple(kernels))


def _in_child(
    source: str, capability: int, sums: str, begun: Callable[[], None], *, path: str, stem: str
) -> dict[str, bytes]:
    """Compile a module in another process; return the artifacts, ptxas's report and the figures.

    Some illegal kernels abort the process, and MLIR prints its errors to file descriptor 2; both must come
    here as text, not take this process along.
    """
    triton_api.load()
    with scratch() as scratch_directory:
        directory = Path(scratch_directory)
        module_path = directory / f"{stem}.py"
        module_path.write_text(source, encoding="utf-8")
        # A cache of its own: the ptxas report is printed on a cache miss only.
        own_cache = {triton_api.CACHE_VARIABLE: str(directory / "cache")}
        try:
            child = run_in_worker(
                partial(_compile_here, module_path, capability, sums),
                directory,
                {**triton_api.COMPILER_ENVIRONMENT, **own_cache},
                TIMEOUT_SECONDS,
                begun,
            )
        except subprocess.TimeoutExpired as error:
            message = f"the compiler did not finish within {TIMEOUT_SECONDS} seconds"
            raise GemmgenError([Diagnostic(path, "lowering-failed", message)]) from error
        if child.returncode != 0:
            message = _failure(child.returncode, child.stderr, module_path)
            raise GemmgenError([Diagnostic(path, "lowering-failed", message)])
        made = {path.name.removeprefix("kernel."): path.read_bytes() for path in directory.glob("kernel.*")}
        return made | {"ptxas": child.stdout.encode()}


def _compile_here(path: Path, capability: int, sums: str) -> None:
    """In the child: write ``kernel.<stage>``, ``kernel.figures`` and ``kernel.facts`` beside a module."""
    imported = import_generated(path)
    signature = signature_of(imported, sums)
    compiled = triton_api.compile_kernel(
        imported.matmul_kernel, signature, capability, imported.LAUNCH_OPTIONS
    )
    facts = [_facts_of(compiled, signature)]
    for stage, data in compiled.stages.items():
        path.with_name(f"kernel.{stage}").write_bytes(data)
    figures = {name: getattr(compiled, name) for name in ("smem_bytes", "warps", "tmem_columns")}
    if second := getattr(imported, "reduction_kernel", None):
        # What ptxas says of it stands in the same report: it must not spill either.
        signature = _signature(imported, second, sums)
        reduction = triton_api.compile_kernel(second, signature, capability, imported.REDUCTION_OPTIONS)
        figures["reduction_smem_bytes"] = reduction.smem_bytes
        facts.append(_facts_of(reduction, signature))
        for stage in ("ptx", "cubin"):
            path.with_name(f"kernel.{REDUCTION}.{stage}").write_bytes(reduction.stages[stage])
    path.with_name("kernel.figures").write_text(json.dumps(figures), encoding="utf-8")
    known = json.dumps([each.as_dict() for each in facts])
    path.with_name("kernel.facts").write_text(known, encoding="utf-8")


def _facts_of(compiled: triton_api.Compiled, signature: Mapping[str, str]) -> KernelFacts:
    """Return the facts of a compiled kernel, whose arguments have the types of a signature."""
    maps = iter(triton_api.tensor_maps(compiled.stages["ttgir"]))
    arguments = (_passed(name, spelled, maps) for name, spelled in signature.items())
    return KernelFacts(
        compiled.entry,
        tuple(arguments),
        compiled.warps * triton_api.WARP_THREADS,
        compiled.smem_bytes,
        compiled.cluster_ctas,
        compiled.is_dependent,
        compiled.scratch_bytes,
    )


def _passed(name: str, spelled: str, maps: Iterator[triton_api.TensorMap]) -> Passed:
    """Return an argument of a type as a signature spells it; of a descriptor, with the next of the maps."""
    if spelled.startswith("tensordesc"):
        return Passed(name, "map", next(maps))
    if spelled.startswith("*"):
        return Passed(name, "pointer")
    return Passed(name, "i64" if spelled == "i64" else "i32")


TELLING = (
    r"\.py:\d+:\d+: error: ",  # MLIR, at a line of the module; what follows it are consequences
    r"Assertion `|LLVM ERROR",
    r"^\w+Error\b",  # the cause of Triton's CompilationError, which itself tells only a place
    r"Error\b",
)
"""Lines that give a compiler's reason, the surest first."""


def _failure(returncode: int, stderr: str, module_path: Path) -> str:
    """Say why the compiler's process ended: in its own words, and by which signal if it was killed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    telling = (line for pattern in TELLING for line in lines if re.search(pattern, line))
    reason = next(telling, lines[-1])
    how = f" (killed by {signal.Signals(-returncode).name})" if returncode < 0 else ""
    return f"Triton refuses the kernel{how}: {reason}".replace(str(module_path), module_path.name)


MMA = r"(wgmma)\.mma_async\.sync\.aligned\.([\w.:]+)|(tcgen05)\.mma\.([\w.:]+)"


def _measure(ptx: str, ptxas_log: str, figures: Mapping[str, int]) -> Resources:
    """Read the kernel's resources off its PTX and the assembler's report."""

    def reported(what: str) -> int:
        return sum(int(count) for count in re.findall(rf"(\d+) bytes {what}", ptxas_log))

    if "bytes stack frame" not in ptxas_log:
        raise RuntimeError("ptxas printed no resource report")
    limits = re.findall(r"^\.maxnreg (\d+)", ptx, re.MULTILINE)
    return Resources(
        smem_bytes=figures["smem_bytes"],
        tmem_columns=figures["tmem_columns"],
        warps=figures["warps"],
        spill_store_bytes=reported("spill stores"),
        spill_load_bytes=reported("spill loads"),
        stack_bytes=reported("stack frame"),
        mmas=tuple(sorted({" ".join(filter(None, found)) for found in re.findall(MMA, ptx)})),
        operations={name: len(re.findall(pattern, ptx)) for name, pattern in OPERATIONS.items()},
        traps=bool(re.search(r"^\s*trap;", ptx, re.MULTILINE)),
        setmaxnreg=tuple(
            sorted({int(n) for n in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", ptx)})
        ),
        multicast_loads=len(re.findall(r"cp\.async\.bulk\.tensor\S*\.multicast::cluster", ptx)),
        ptxas_notes=tuple(re.findall(r"\(C75\d\d\)[^\n]*", ptxas_log)),
        launch_registers=int(limits[0]) if limits else None,
        reduction_smem_bytes=figures.get("reduction_smem_bytes"),
        registers=max(map(int, re.findall(r"Used (\d+) registers", ptxas_log)), default=0),
    )


def promised_mmas(plan: Kernel) -> tuple[str, ...]:
    """Return the instructions that a plan multiplies with, and their qualifiers as PTX spells them."""
    mmas = (f"{plan.architecture.mma} {'.'.join((name, *plan.mma_types))}" for name in plan.mma_names)
    return tuple(sorted(mmas))


def promised_launch_registers(plan: Kernel) -> int | None:
    """Return the limit of registers per thread at the launch, None if there is no limit.

    Triton limits a kernel whose workers request registers: it starts with the pool that they divide.
    """
    pool = plan.register_pool
    return pool.launch_registers if pool.handed_over else plan.launch_register_limit


def promised_multicast_loads(plan: Kernel) -> int:
    """Return the multicast loads of a K step, and once more those that it has early, ahead of the loop."""
    twice = plan.read_early or ""
    return sum(plan.loads(operand) * (2 if operand == twice else 1) for operand in plan.multicast)


def _operation_differences(plan: Kernel, found: Resources) -> Iterator[str]:
    """Yield which operations are not in the code as often as the plan promises."""
    for name, count in plan.operations.items():
        if found.operations[name] != count:
            yield f"the plan has {count} {name} in its code, the compiler {found.operations[name]}"


def _differences(plan: Kernel, found: Resources) -> Iterator[str]:
    """Yield every point in which the compiled kernel is not the planned one."""
    if found.smem_bytes != plan.smem_bytes:
        yield f"the plan has {plan.smem_bytes:,} bytes of shared memory, the compiler {found.smem_bytes:,}"
    if found.tmem_columns != plan.tmem_columns:
        yield (
            f"the plan has {plan.tmem_columns} columns of tensor memory, the compiler {found.tmem_columns}"
        )
    if found.traps:
        yield "the compiler gave up: the kernel traps"
    yield from _operation_differences(plan, found)
    if found.reduction_smem_bytes != plan.reduction_smem_bytes:
        yield (
            f"the plan has {plan.reduction_smem_bytes} bytes of shared memory for the kernel that adds up "
            f"sums, the compiler {found.reduction_smem_bytes}"
        )
    if found.warps != plan.total_warps:
        yield f"the plan has {plan.total_warps} warps, the compiler {found.warps}"
    if found.mmas != (planned_mmas := promised_mmas(plan)):
        mmas = ", ".join(found.mmas) or f"no {plan.architecture.mma}"
        yield f"the plan multiplies with {', '.join(planned_mmas)}, the compiler with {mmas}"
    limit = promised_launch_registers(plan)
    if found.launch_registers != limit:
        yield (
            f"the plan starts with {limit or 'any number of'} registers per thread, the compiler with "
            f"{found.launch_registers or 'any number'}"
        )
    promised = plan.register_pool.requests
    if promised != found.setmaxnreg:
        planned, compiled = (", ".join(map(str, counts)) or "none" for counts in (promised, found.setmaxnreg))
        yield f"the plan has setmaxnreg {planned}, the compiler {compiled}"
    multicast_loads = promised_multicast_loads(plan)
    if found.multicast_loads != multicast_loads:
        yield f"the plan has {multicast_loads} multicast loads, the compiler {found.multicast_loads}"
    if found.spill_store_bytes or found.spill_load_bytes or found.stack_bytes:
        advice = _spill_advice(plan, found.stack_bytes)
        yield (
            f"registers spill: {found.spill_store_bytes} bytes stored, {found.spill_load_bytes} loaded, "
            f"{found.stack_bytes} of stack{advice}"
        )
    for note in _unexpected_notes(plan, found).values():
        yield f"ptxas: {note}"


def _spill_advice(plan: Kernel, stack_bytes: int) -> str:
    """Return which decision to change where registers spill, and to what; nothing where no change may help.

    The compiler tells how much spills, and not in which role: with more registers than are expected to be
    taken, the one that loads is the likelier.
    """
    rules = family_for(plan).cautious_rules
    short = round_up(max(1, stack_bytes // 4), plan.architecture.setmaxnreg_granularity)
    for path, change in _relief(plan, short):
        if not judge(altered(plan, **change), rules):
            return f"; try {change[FIELDS[path]]} for {path}"
    return ""


def _relief(plan: Kernel, short: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield fixes that free registers: each is a field to state, with the fields that change with it."""
    named: dict[str, int] = {
        name: value for name in FIELDS.values() if isinstance(value := getattr(plan, name, None), int)
    }
    step = plan.architecture.setmaxnreg_granularity
    roles = ["consumer", "producer", "worker"]
    fewer = altered(plan, **_less(named, "consumer_registers", 2 * step))
    if not judge(fewer, family_for(plan).cautious_rules):
        roles.sort(key=lambda role: role == "consumer")  # it has more than it needs
    for role in roles:
        if name := f"{role}_registers" if f"{role}_registers" in named else "":
            more = short if role == "consumer" else step
            yield f"warp_specialization.registers.{role}", {name: named[name] + more}
    if named["occupancy"] > 1:
        yield "occupancy", {"occupancy": named["occupancy"] - 1}
    yield "epilogue.subtile_n", {"subtile_n": named["subtile_n"] // 2}
    yield "tile.k", {"cta_tile_k": named["cta_tile_k"] // 2}
    narrower = named["cta_tile_n"] // 2
    yield "tile.n", {"cta_tile_n": narrower, "subtile_n": min(named["subtile_n"], narrower)}
    yield "tile.m", {"cta_tile_m": named["cta_tile_m"] // 2}


def _less(named: Mapping[str, int], name: str, less: int) -> dict[str, int]:
    """Return a change of one decision, nothing where the plan has none of that name."""
    return {name: named[name] - less} if name in named else {}
