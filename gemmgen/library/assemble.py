"""Assembly of a library from a selection: each kernel's module, spec, name and measured times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.library.manifest import TAKEN_NAMES, MeasuredLine
from gemmgen.library.pinned import family_label, pinned_text
from gemmgen.library.selection import Selection, predictable
from gemmgen.library.sources import Sources
from gemmgen.lower import lower
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import counted
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.family import kind_of
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.processes.scratch import scratch
from gemmgen.product import Product, make
from gemmgen.spec.model import Spec
from gemmgen.spec.module_names import module_name_problem
from gemmgen.spec.values import TITLE_LIMIT


@dataclass(frozen=True)
class Member:
    """A kernel of a library: its name, its spec and its product."""

    stem: str
    spec: str
    """The text of its spec."""
    product: Product

    def __str__(self) -> str:
        return self.stem


@dataclass(frozen=True)
class Library:
    """Content of the files of a library."""

    name: str
    problem: Contest
    description: str
    """Description of the problem that its kernels compute, for people."""
    gpu: str | None
    """Product name of the measured GPU; None without measurements."""
    baseline: str
    sources: tuple[tuple[str, str], ...]
    """The names of the files that it was made from, and the SHA-256 of each."""
    members: tuple[Member, ...]
    measured: Mapping[str, tuple[MeasuredLine, ...]]
    """Measurements of the kernels, by their names."""

    @property
    def fastest(self) -> dict[Shape, str]:
        """The name of the kernel that was the fastest at each measured size, beside the baseline."""
        found: dict[Shape, tuple[float, str]] = {}
        for stem, rows in self.measured.items():
            for m, n, k, seconds, baseline in rows:
                shape, ratio = (m, n, k), baseline / seconds
                if shape not in found or ratio > found[shape][0]:
                    found[shape] = ratio, stem
        return {shape: stem for shape, (_, stem) in sorted(found.items())}

    def __str__(self) -> str:
        tuned = f"{counted(len(self.fastest), 'problem size')} measured on {self.gpu}"
        choice = tuned if self.measured else "nothing measured: the rule decides"
        return f"{counted(len(self.members), 'kernel')}; {choice}"

    def as_dict(self) -> dict[str, object]:
        """Return the content as plain data for JSON."""
        return {
            "problem": asdict(self.problem),
            "description": self.description,
            "gpu": self.gpu,
            "kernels": [member.stem for member in self.members],
            "fastest": [[*shape, stem] for shape, stem in self.fastest.items()],
        }


def lowered(member: Member) -> None:
    """Compile a kernel, and compare the result with its plan.

    Raises GemmgenError if the compiler refuses the kernel, or measures other values than planned.
    """
    product = member.product
    lower(product.module, product.plan, path=f"{member.stem}.yaml", stem=member.stem)


def assemble(name: str, sources: Sources, choice: Selection, *, dependent: bool = False) -> Library:
    """Return the library of this name with the selected kernels.

    If `dependent`, kernels start while the kernel before them still runs, and wait for its end before they
    read.

    Raises GemmgenError: ``module-name`` if the name cannot be that of a package; ``library-rule`` if nothing
    is tuned and there is no rule for the kernels.
    """
    if problem := module_name_problem(name):
        raise GemmgenError([Diagnostic(name, "module-name", f"{name} {problem}: choose another name")])
    stems = _stems(name, sources, choice.kernels)
    members = tuple(_members(sources, choice.kernels, stems, dependent=dependent))
    if name in stems.values():
        message = "is the name of a kernel in it too, and each is an operator of torch: choose another name"
        raise GemmgenError([Diagnostic(name, "module-name", message)])
    for stem, times in Counter(stems.values()).items():
        if times > 1 or stem in TAKEN_NAMES:
            why = "two of its specs have it" if times > 1 else "a library has something else of that name"
            message = f"{stem} cannot be the name of a kernel in it: {why}; rename a spec"
            raise GemmgenError([Diagnostic(name, "module-name", message)])
    measured: dict[str, list[MeasuredLine]] = {stems[kernel]: [] for kernel in choice.kernels}
    for one in choice.measurements:
        times = (float(f"{seconds * 1e6:.5g}") for seconds in (one.seconds, one.baseline_seconds))
        measured[stems[one.kernel]].append((*one.shape, *times))  # pyright: ignore[reportArgumentType]
    predictable(name, choice.kernels)
    return Library(
        name,
        sources.problem,
        sources.description,
        sources.gpu,
        sources.baseline,
        sources.files,
        members,
        {stem: tuple(rows) for stem, rows in measured.items() if rows},
    )


def _stems(name: str, sources: Sources, kernels: Sequence[Kernel]) -> dict[Kernel, str]:
    """Return the name of each kernel's module: its spec's, or words that distinguish the kernel."""
    found: dict[Kernel, str] = {}
    taken: set[str] = set()
    for kernel in kernels:
        if kernel in sources.specs:
            found[kernel] = sources.specs[kernel].stem
        else:
            (predicted,) = predictable(name, [kernel])
            words = f"{name}_{words_of(predicted)}"
            found[kernel] = next(stem for stem in _to_try(words, kernel) if stem not in taken)
        taken.add(found[kernel])
    return found


def _to_try(words: str, kernel: Kernel) -> Iterator[str]:
    """Yield names: the words, with the order of tiles, and then with a number."""
    yield words
    yield f"{words}_{kernel.order}"
    yield from (f"{words}_{number}" for number in count(2))


def _title_words(kernel: Kernel) -> str:
    """Return a kernel's decisions in one line, as members of libraries have them in their titles.

    A title is in a member's bytes, by which records know it: a refresh keeps the words for a reduction.
    """
    return family_label(kernel).replace("reduced in parallel", "added up in parallel")


def words_of(kernel: WgmmaKernel) -> str:
    """Return the decisions of a kernel as a part of a module's name: ``cooperative_128x256x64_cluster2x1``.

    Two consumers of cooperative kernels have no word, nor have the MMAs in flight that are usual.
    """
    kind = kind_of(kernel)
    # Libraries have modules of this name, which users import: a refresh keeps the earlier words, for swap-AB
    # and for a parallel reduction.
    words = [
        "exchanged" if kind == "swap-AB" else kind.replace("-", "_").replace(" ", "_"),
        f"{kernel.cta_tile_m}x{kernel.cta_tile_n}x{kernel.cta_tile_k}",
    ]
    if kernel.staggered:
        words.append("staggered")
    if kernel.cluster_size > 1:
        words.append(f"cluster{kernel.cluster_m}x{kernel.cluster_n}")
    if kind == "cooperative" and kernel.consumers != 2:
        words.append(f"{kernel.consumers}_consumer{'s' * (kernel.consumers > 1)}")
    if kernel.occupancy > 1:
        words.append(f"occupancy{kernel.occupancy}")
    if kernel.splits > 1:
        words.append(f"split{kernel.splits}")
    if kernel.reduces_apart:
        words.append("added_up_in_parallel")
    usual = 0 if kind == "cooperative" and kernel.consumers > 1 else 1
    if kernel.outstanding_mmas != usual:
        words.append(f"q{kernel.outstanding_mmas}")
    return "_".join(words)


def _members(
    sources: Sources, kernels: Sequence[Kernel], stems: Mapping[Kernel, str], *, dependent: bool
) -> Iterator[Member]:
    """Yield the kernels with specs that leave nothing open, and their modules."""
    with scratch() as directory:
        for kernel in kernels:
            stem, path = stems[kernel], Path(directory) / f"{stems[kernel]}.yaml"
            if kernel in sources.specs:
                text = Path(sources.specs[kernel].path).read_text(encoding="utf-8")
            else:
                title = f"{sources.description} matmul, {_title_words(kernel)}"[:TITLE_LIMIT]
                launched = launched_early(kernel, sources.spec, title) if dependent else None
                text = launched or pinned_text(kernel, sources.spec, title)
            path.write_text(text, encoding="utf-8", newline="\n")
            yield Member(stem, text, make(path))


def launched_early(kernel: Kernel, spec: Spec, title: str) -> str | None:
    """Return the text of a spec of the kernel that waits itself for the one before it; None if none can."""
    if not isinstance(kernel, WgmmaKernel):
        return None
    waiting = replace(kernel, early_operand="nothing", trigger="loads")
    try:
        return pinned_text(waiting, spec, title)
    except GemmgenError:
        return None
