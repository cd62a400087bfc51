"""All stages from a spec to its files, written together or not at all.

The files are a module with its manifest, or a cubin with a launcher in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gemmgen import triton_api
from gemmgen.compiled_advice import with_compiled_advice
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.exporting import refusals
from gemmgen.features.rendering import sides_of
from gemmgen.launch_facts import code_differences
from gemmgen.lower import Lowered, Resources, ShortageError, lower
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.verdicts import PassedOver, cause_digest, kernel_digest
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import Tick, family_for
from gemmgen.planner.ledger import Ledger, ledger
from gemmgen.product import Product, load, make_as_built, make_of, write, write_files
from gemmgen.render import render_launcher
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.spec import SpecFile
from gemmgen.triton_api import disassemble

if TYPE_CHECKING:
    from gemmgen.lower import Resources
    from gemmgen.verify.simulation import Simulation


ONE_SIMULATION = Lock()
"""Held while a module is simulated, and just before, while the process that compiles it is forked.

A process that is forked while another thread is inside torch has that thread's locks and not the thread, and
may wait for ever.
"""


@dataclass(frozen=True)
class Built:
    """A written module with its plan and the evidence for it."""

    spec: str
    module: Path
    plan: Kernel
    resources: Resources | None
    """The compiler's figures, None if nothing was compiled."""
    simulation: Simulation | None
    """The simulator's findings, None if nothing was simulated."""
    artifacts: tuple[Path, ...]
    """Artifacts beside the module: PTX, cubin and others."""
    gradients: tuple[Built, ...] = ()
    """The modules of the gradients, if the spec has a backward."""
    passed_over: tuple[PassedOver, ...] = ()
    """Kernels that rank before this one, which the compiler has rejected."""

    @property
    def ledger(self) -> Ledger:
        """The account of the hardware's resources."""
        return ledger(self.plan)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "spec": self.spec,
            "module": self.module.as_posix(),
            "artifacts": [path.as_posix() for path in self.artifacts],
            "ledger": self.ledger.as_dict(),
            "resources": asdict(self.resources) if self.resources else None,
            "simulation": self.simulation.as_dict() if self.simulation else None,
            "passed_over": [asdict(each) for each in self.passed_over],
            **({"gradients": [gradient.as_dict() for gradient in self.gradients]} if self.gradients else {}),
        }


def build(
    spec: Path, out: Path, *, emit: Sequence[str] = (), lowering: bool = True, simulation: bool = True
) -> Built:
    """Generate, compile, simulate and write one spec's module under `out`, with the artifacts of `emit`.

    So it does with the modules of its gradients, where a spec has a backward: all are written, or none.
    Without `lowering` there is no simulation either: it needs the same compiler.

    Raises:
        GemmgenError: A stage refuses the spec or finds a fault; then nothing has been written.
    """
    if lowering:
        settled = settle(load(spec), partial(_prove, simulation=simulation))
        product, proofs = settled.product, settled.results
    else:
        product = make_as_built(spec, out)
        proofs = ((None, None),) * len(product.each)
    built: list[Built] = []
    artifacts: dict[str, bytes] = {}
    for each, (lowered, simulated) in zip(product.each, proofs, strict=True):
        emitted = _emitted(lowered, emit) if lowered else {}
        module = out / f"{each.source.stem}.py"
        paths = {stage: module.with_suffix(f".{stage}") for stage in emitted}
        artifacts |= {path.name: emitted[stage] for stage, path in paths.items()}
        resources = lowered.resources if lowered else None
        built.append(
            Built(
                each.source.path,
                module,
                each.plan,
                resources,
                simulated,
                (*paths.values(),),
                passed_over=each.passed_over,
            )
        )
    write(product, out, artifacts)
    first, *gradients = built
    return replace(first, gradients=tuple(gradients))


def _emitted(lowered: Lowered, stages: Sequence[str]) -> dict[str, bytes]:
    """Return the artifacts of a lowering, by stage."""
    return {
        stage: disassemble(lowered.artifacts["cubin"]) if stage == "sass" else lowered.artifacts[stage]
        for stage in stages
    }


def _prove(product: Product, *, simulation: bool) -> tuple[Lowered, Simulation | None]:
    """Compile and simulate a module at the same time: the compiler is another process."""
    source, begun = product.source, Event()
    compiled = partial(
        lower, product.module, product.plan, path=source.path, stem=source.stem, begun=begun.set
    )
    if not simulation:
        return compiled(), None
    with ThreadPoolExecutor(2) as pool:
        with ONE_SIMULATION:
            lowered = pool.submit(compiled)
            lowered.add_done_callback(lambda _: begun.set())  # a cached result, or an error, forks nothing
            begun.wait()
            simulated = pool.submit(_simulate, product)
            wait([simulated])
        # The compiler's errors first: a kernel that it rejects cannot be simulated either.
        return lowered.result(), simulated.result()


def _simulate(product: Product) -> Simulation:
    """Run the module under the few schedules that a build has time for."""
    # Before anything below imports parts of it, in another order than the thread that compiles.
    triton_api.load()
    from gemmgen.verify.launches import ring_launch
    from gemmgen.verify.simulation import simulate_product  # torch: a second, only where needed

    simulated = simulate_product(product, (ring_launch(product.plan),))
    if simulated.problems:
        raise GemmgenError(simulated.diagnostics)
    return simulated


# --- plans that the compiler confirms

# The rules ask a kernel for the registers that it holds by construction, and the compiler alone knows whether
# these are enough. Where it says that they are not, the planner proposes the next kernel of its ranking.

T = TypeVar("T")

MOST_PASSED_OVER: Final = 24
"""Kernels of one module that the compiler may refuse before the spec is given up: each takes seconds."""


@dataclass(frozen=True)
class Settled(Generic[T]):
    """A product whose plans the compiler has confirmed."""

    product: Product
    results: tuple[T, ...]
    """The result of the proof for the product, then for each of its gradients."""


def settle(
    source: SpecFile, prove: Callable[[Product], T], tick: Tick | None = None, *, gradients: bool = True
) -> Settled[T]:
    """Return the product of a spec with the best plan that `prove` accepts.

    `prove` compiles a product's module, and raises ShortageError if the registers of a role are too
    few. The planner then proposes the next plan to which the cause of the refusal does not apply
    (`cause_digest`). If there is none, it proposes each other plan. `tick` is the progress callback of a long
    search.

    Raises:
        GemmgenError: No plan that satisfies the spec is left, `MOST_PASSED_OVER` plans or more of a module
            were refused, or `prove` found another fault.
    """
    refused: dict[str, tuple[PassedOver, ...]] = {}
    skips_alike = True
    while True:
        try:
            product, results = make_of(source, tick, refused), list[T]()
        except GemmgenError as error:
            if skips_alike and any(refused.values()):
                skips_alike = False
                refused = {
                    stem: tuple(replace(each, cause=None) for each in passed)
                    for stem, passed in refused.items()
                }
                continue
            raise with_compiled_advice(source, refused, lowered_of) or error from None
        wanted = product.each if gradients else (product,)
        for each in wanted:
            try:
                results.append(prove(each))
            except ShortageError as error:
                stem = each.source.stem
                found = PassedOver(
                    kernel_digest(each.plan),
                    family_for(each.plan).label(each.plan),
                    error.verdict,
                    cause_digest(each.plan, error.verdict) if skips_alike else None,
                )
                if found.kernel in (one.kernel for one in refused.get(stem, ())):
                    raise  # the planner has no other plan
                refused[stem] = (*refused.get(stem, ()), found)
                if len(refused[stem]) > MOST_PASSED_OVER:
                    raise _given_up(each.source, refused[stem]) from error
                break
        if len(results) == len(wanted):
            return Settled(product, tuple(results))


def lowered_of(product: Product) -> Lowered:
    """Compile a product's module and confirm its plan.

    Raises:
        ShortageError: The registers of a role are too few.
        GemmgenError: The compiler rejects the kernel, or the compiled kernel differs from the plan.
    """
    return lower(product.module, product.plan, path=product.source.path, stem=product.source.stem)


def _given_up(source: SpecFile, refused: Sequence[PassedOver]) -> GemmgenError:
    """Return the error that the best plans of a spec were all refused, with the verdict on the best."""
    line, column = source.locate("tile")
    message = (
        f"the {len(refused)} best plans were compiled, and the registers of none are enough: of the first, "
        f"{refused[0]}; state a smaller tile, or fewer steps of the epilogue"
    )
    return GemmgenError(
        [Diagnostic(source.path, "registers-given-up", message, field="tile", line=line, column=column)]
    )


# --- a kernel without Python


@dataclass(frozen=True)
class Exported:
    """The files of a kernel for C programs."""

    spec: str
    files: tuple[Path, ...]

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {"spec": self.spec, "files": [path.as_posix() for path in self.files]}


EXPORT_MARK = rb"Generated by gemmgen|gemmgen writes this file"
"""Words by which a text is known to be written by gemmgen."""


def export(spec: Path, directory: Path) -> Exported:
    """Write one spec's cubin, its header and facts in C, and the launcher in C that all kernels share.

    Raises:
        GemmgenError: A stage refuses the spec, there is no launcher for such a kernel, or the compiler passes
            arguments otherwise than the launcher would; then nothing has been written.
    """
    settled = settle(load(spec), _exportable, gradients=False)
    product, lowered = settled.product, settled.results[0]
    source = product.source
    assert isinstance(product.plan, WgmmaKernel)  # what `_refusals` has left
    cubin = lowered.artifacts["cubin"]
    facts = LaunchFacts(product.plan, source.stem, cubin)
    if differences := tuple(launch_differences(facts, lowered)):
        raise GemmgenError(Diagnostic(source.path, "plan-differs", difference) for difference in differences)
    texts = render_launcher(facts, sides_of, spec_name=source.name, spec_sha256=source.sha256)
    files = {f"{source.stem}.cubin": cubin, **{name: text.encode() for name, text in texts.items()}}
    paths = {directory / name: data for name, data in files.items()}
    write_files(paths, {directory / name: EXPORT_MARK for name in texts})
    return Exported(source.path, tuple(paths))


def _exportable(product: Product) -> Lowered:
    """Compile a module whose kernel a launcher in C can launch.

    Raises:
        GemmgenError: There is no launcher for such a kernel, or the compiler does not confirm the plan.
    """
    if found := tuple(refusals(product.plan)):
        raise GemmgenError(violation.diagnosed(product.source) for violation in found)
    return lowered_of(product)


def launch_differences(facts: LaunchFacts, lowered: Lowered) -> Iterator[str]:
    """Yield each difference between the facts of a launch and the compiled kernel."""
    planned, compiled = facts.launch, lowered.kernels[0].facts
    if differences := [*code_differences(planned, lowered.artifacts["ptx"].decode())]:
        yield from differences
        return
    for wanted, found in zip(planned.maps, compiled.maps, strict=True):
        described, asked = wanted.map, found.map
        if described and asked and described != asked:
            name = wanted.name.removesuffix("_desc")
            yield f"the launcher describes {name} as {astuple(described)}, the compiler has {astuple(asked)}"
