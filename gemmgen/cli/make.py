"""Commands from specs to modules: plan, build, check, list and diff."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmgen.cli.candidates import candidates_table, explanation
from gemmgen.cli.options import (
    CANDIDATES,
    Candidates,
    Explain,
    Format,
    Freeze,
    Json,
    Lowering,
    Out,
    PlanFile,
    SarifFile,
    Simulating,
    Specs,
    refuse_duplicates,
    refuse_file,
)
from gemmgen.cli.reporting import choose, complain, end, print_json, say, write
from gemmgen.cli.running import Show, prefixed, progressing, run_each
from gemmgen.cli.texts import columns, resources_text
from gemmgen.device import require_compiler
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.files import read_text
from gemmgen.plan.decisions import gradient_stem
from gemmgen.plan.rule import counted
from gemmgen.plan.search import narrow_tile
from gemmgen.planner import Tick
from gemmgen.problem import OPERANDS
from gemmgen.product import Product, check, make, make_as_built
from gemmgen.spec import load_spec
from gemmgen.spec.module_names import stem_problem
from gemmgen.spec.reading import STDIN, SUFFIXES


def plan(
    specs: Specs,
    candidates: Candidates = None,
    explain: Explain = False,
    freeze: Freeze = None,
    svg: PlanFile = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Check specs against the hardware and print their plans.

    A plan lists shared memory, registers, barriers, waves and the predicted time.
    """
    from gemmgen.plan.verdicts import standing_of
    from gemmgen.planner.ledger import ledger

    choose(form, sarif)
    refuse_file("--svg", svg, specs, "a picture shows one spec")
    products, failed = _planned(specs)
    if svg:
        from gemmgen import pictures

        for product in products:
            write(svg, pictures.svg(product))
    if freeze:
        _print_frozen(products, freeze, as_json=as_json)
    elif candidates or explain:
        _print_candidates(products, candidates or CANDIDATES, explained=explain, as_json=as_json)
    elif as_json:
        print_json(
            {
                p.source.path: {
                    "fields": p.fields,
                    "registers": standing_of(p.plan).as_dict(),
                    **ledger(p.plan).as_dict(),
                }
                for p in products
            },
        )
    elif products:
        say(
            "\n\n".join(
                f"{p.source.path}: {p.plan.request.title}\n\n{ledger(p.plan).as_text()}\n\n"
                f"register budget: {standing_of(p.plan)}{standing_of(p.plan).consequence}"
                for p in products
            )
        )
    end(failed)


def build_command(
    specs: Specs,
    out: Out = Path("generated"),
    emit: Annotated[
        str,
        typer.Option(metavar="STAGE,…", help="Also write ttgir, llir, ptx, cubin, sass beside the module."),
    ] = "",
    lowering: Lowering = True,
    simulation: Simulating = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors and warnings.")] = False,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Generate, compile, simulate and write a module per spec.

    A module is written only if every stage has passed.
    """
    from gemmgen.build import build
    from gemmgen.lower import STAGES

    choose(form, sarif)
    stages = [stage for stage in emit.split(",") if stage]
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: choose among {', '.join(STAGES)}", param_hint="--emit"
        )
    if stages and not lowering:
        raise typer.BadParameter("artifacts come from lowering; leave out --no-lower", param_hint="--emit")
    refuse_duplicates(specs)
    _refuse_gradients(specs)
    if lowering:
        require_compiler()
    with progressing("building", shown=not quiet) as progress:
        action = partial(build, out=out, emit=stages, lowering=lowering, simulation=simulation)
        built, failed = run_each(specs, action, progress, parallel=lowering)
    if as_json:
        print_json([item.as_dict() for item in built])
    for item in () if as_json or quiet else (each for one in built for each in (one, *one.gradients)):
        say(f"{item.spec}\n\n{item.ledger.as_text()}\n")
        if item.resources:
            say(resources_text(item.resources, item.plan) + "\n")
        for refused in item.passed_over:
            say(f"passed over {refused}\n")
        if item.simulation:
            say(f"{item.simulation}\n")
        say("\n".join(f"wrote {path}" for path in (item.module, *item.artifacts)))
    end(failed)


def check_command(
    specs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SPEC…]", help="Default: all in specs/, or without that folder all here."),
    ] = None,
    out: Out = Path("generated"),
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Compare modules with their specs, byte for byte.

    It finds modules that are missing, stale, edited by hand or orphaned.
    """
    choose(form, sarif)
    chosen = specs or _all_specs()
    refuse_duplicates(chosen)
    if not chosen:
        raise GemmgenError([Diagnostic(".", "no-specs", f"{NO_SPECS}: name the specs to check")])
    products, failed = run_each(chosen, partial(make_as_built, directory=out))
    findings = check(products, out, exhaustive=not specs and not failed)
    if as_json:
        print_json({f.diagnostic.path: {"state": f.diagnostic.code, "diff": f.diff} for f in findings})
    for finding in findings:
        complain(GemmgenError([finding.diagnostic]))
        if not as_json:
            say(finding.diff, end="")
    if not (findings or failed or as_json):
        modules = sum(1 + len(product.gradients) for product in products)
        say(f"{counted(len(products), 'spec')}, {counted(modules, 'module')} under {out}: all up to date")
    end(failed or bool(findings))


def list_command(
    out: Out = Path("generated"), form: Format = "text", sarif: SarifFile = None, as_json: Json = False
) -> None:
    """List specs, their plans and the state of their modules."""
    choose(form, sarif)
    found = _all_specs()
    refuse_duplicates(found)
    products, failed = run_each(found, make)
    rows: list[dict[str, object]] = []
    for product in products:
        findings = check([product], out, exhaustive=False)
        rows.append(_row(product, findings[0].diagnostic.code if findings else "up to date"))
    if as_json:
        print_json(rows)
    elif rows:
        say("\n".join(columns(rows)))
    elif not failed:
        say(f"{NO_SPECS}: `gemmgen init` writes one")
    end(failed)


def _row(product: Product, module: str) -> dict[str, object]:
    """Return the row of a spec in a list: its types, its plan, the state of its module, its title."""
    plan, problem = product.plan, product.plan.problem
    return {
        "spec": product.source.stem,
        "dtypes": f"{problem.a.dtype.name} x {problem.b.dtype.name} -> {problem.d.name}",
        "tile": narrow_tile(plan),
        "cluster": f"{plan.cluster_m}x{plan.cluster_n}",
        "stages": plan.stages,
        "module": module,
        "title": plan.request.title,
    }


def diff_command(
    first: Annotated[Path, typer.Argument(metavar="A", help="A spec.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another spec.")],
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Compare the plans of two specs: decisions, resources, times."""
    choose(form, sarif)
    from gemmgen.planner.ledger import differences, differences_text

    products, failed = _planned([first, second])
    if not failed:
        one, other = products
        found = differences(one.plan, other.plan)
        if as_json:
            print_json({each.name: [each.first, each.second] for each in found})
        else:
            say(differences_text(found, one.source.path, other.source.path))
    end(failed)


# --- plans and their candidates


def _planned(specs: list[Path]) -> tuple[list[Product], bool]:
    """Plan specs, and print the warnings of legal ones; return the products and whether any spec failed."""
    from gemmgen.planner import warnings

    def plan_one(path: Path) -> Product:
        return make(path, _searching(progress, path.as_posix()), any_name=True)

    with progressing("planning") as progress:
        products, failed = run_each(specs, plan_one)
    for product in products:
        found = (*_name_warnings(product.source.path), *warnings(product.source, product.plan))
        complain(GemmgenError(found))
    return products, failed


def _name_warnings(path: str) -> Iterator[Diagnostic]:
    """Yield a warning if a spec file's name cannot be a module's: commands that write one will refuse it."""
    if path != STDIN and (problem := stem_problem(Path(path))):
        code, message = problem
        yield Diagnostic(path, code, message, severity="warning")


def _searching(progress: Show, subject: str) -> Tick:
    """Return the progress callback of a search."""
    return lambda done, total: prefixed(progress, subject, f"{done:,} of {total:,} combinations")


def _print_candidates(products: list[Product], limit: int, *, explained: bool, as_json: bool) -> None:
    """Print the configurations of each spec, best first; the first one is its plan."""
    from gemmgen.planner import rank

    with progressing("ranking") as progress:
        sources = [product.source for product in products]
        rankings = {each.path: rank(each, _searching(progress, each.path)) for each in sources}
    if as_json:
        print_json({path: found.as_dict(limit, explained=explained) for path, found in rankings.items()})
        return
    for i, (path, found) in enumerate(rankings.items()):
        say("\n" * (i > 0) + f"{path}: {candidates_table(found, limit)}")
        if explained:
            say(f"\n{explanation(found)}")


def _print_frozen(products: list[Product], place: int, *, as_json: bool) -> None:
    """Print a spec that states every decision of a candidate of each spec, the first one its plan."""
    from gemmgen.plan.decisions import frozen
    from gemmgen.planner import rank
    from gemmgen.spec.writing import spec_text

    if len(products) > 1 and not as_json:
        raise typer.BadParameter("prints one spec: name only one, or use --json", param_hint="--freeze")
    found: dict[str, dict[str, Any]] = {}
    for product in products:
        source, plan = product.source, product.plan
        if place > 1:
            with progressing("ranking") as progress:
                legal = rank(source, _searching(progress, source.path)).legal
            if place > len(legal):
                message = f"there is no candidate {place}; the number of legal ones is {len(legal)}"
                raise GemmgenError([Diagnostic(source.path, "no-candidate", message)])
            plan = legal[place - 1].plan
        found[source.path] = frozen(source, plan)
    if as_json:
        print_json(found)
    for data in () if as_json else found.values():
        say(spec_text(data), end="")


# --- which specs


NO_SPECS = "there is no spec in specs/ or in this directory"


def _all_specs() -> list[Path]:
    """Return the YAML files in specs/; if there is no such folder, the ones in this directory that are specs.

    Other YAML files are common in a working directory: a spec is known by its `operands`, which it must have.
    """
    folder = Path("specs")
    found = sorted(
        path for path in (folder if folder.is_dir() else Path()).glob("*") if path.suffix in SUFFIXES
    )
    return found if folder.is_dir() else [path for path in found if _is_spec(path)]


def _is_spec(path: Path) -> bool:
    """Return whether a YAML file has the section that every spec has."""
    try:
        return re.search(r"""\boperands["']?\s*:""", read_text(path)) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _refuse_gradients(paths: list[Path]) -> None:
    """Raise GemmgenError if a spec has the name of the gradient of another one, whose module it makes."""
    stems = {path.stem: path for path in paths}
    for path in paths:
        for stem in (gradient_stem(path.stem, operand) for operand in OPERANDS):
            if stem in stems and load_spec(path).spec.backward:
                message = f"makes the same module as a gradient of {path}: rename one of the two"
                raise GemmgenError([Diagnostic(stems[stem].as_posix(), "module-name", message)])
