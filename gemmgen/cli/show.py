"""Commands that show the machine, the fields of a spec, the rules and numbers: doctor, schema and explain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmgen.build import columns
from gemmgen.cli.explanations import explanation_of, explanations
from gemmgen.cli.options import Json
from gemmgen.cli.reporting import end, print_json, say
from gemmgen.cli.running import progressing, run_each
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.product import Product, make, staged

if TYPE_CHECKING:
    from gemmgen.numerics.error_report import ErrorReport


def doctor(as_json: Json = False) -> None:
    """Show versions, the GPU, and the stages that can run here."""
    from gemmgen.device import examine

    found = examine()
    if as_json:
        print_json(found.as_dict())
        return
    rows = [*found.versions.items(), ("GPU", found.gpu), *found.stages.items()]
    say("\n".join(f"{name:<26} {value}" for name, value in rows))


def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from gemmgen.spec.model import json_schema

    say(json.dumps(json_schema(), indent=2))


def explain_command(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RULE…|WORD…|SPEC…]",
            help="Code of a diagnostic, or a word of specs: smem-capacity, a_rows, silu; specs with "
            "--numerics.",
        ),
    ] = None,
    numerics: Annotated[
        bool,
        typer.Option(
            "--numerics", help="Explain the arithmetic of specs: accumulator, order of sums, errors."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain rules, words or numerics of specs; or list all rules.

    The explanation of a rule has its arithmetic, its source and a spec that breaks it. Errors of a spec are
    modelled on the CPU; if the machine has a GPU that runs the module, the errors of D are measured too.
    """
    if numerics:
        _explain_numerics([Path(each) for each in codes or ()], as_json=as_json)
        return
    found = [explanation_of(code) for code in codes] if codes else list(explanations().values())
    print_json({each.code: each.as_dict() for each in found})
    if not as_json and codes:
        say("\n\n".join(map(str, found)))
    elif not as_json:
        say("\n".join(columns([{"rule": each.code, "says": each.summary} for each in found])))


def _explain_numerics(specs: list[Path], *, as_json: bool) -> None:
    """Print the arithmetic and the errors of specs."""
    from gemmgen.numerics.error_report import error_report

    if not specs:
        raise typer.BadParameter("name a spec", param_hint="--numerics")

    def report(path: Path) -> tuple[str, ErrorReport]:
        product = make(path, any_name=True)
        progress(product.source.stem)
        return product.source.path, _with_measured(error_report(product.plan), product)

    with progressing("modelling") as progress:
        reports, failed = run_each(specs, report)
    print_json({path: found.as_dict() for path, found in reports})
    if not as_json:
        say("\n\n".join(f"{path}\n\n{found}" for path, found in reports))
    end(failed)


def _with_measured(found: ErrorReport, product: Product) -> ErrorReport:
    """Return a report with the errors of D that the module has on the GPU, if there is one that runs it.

    Modules of groups are not measured.
    """
    from gemmgen.module import import_generated, matmul_of
    from gemmgen.numerics.error_report import MEASURED_EXTENT, measured_errors

    plan, problem = product.plan, product.source.problem
    try:
        device = require_gpu(plan.architecture)
    except GemmgenError:
        return found
    if problem.groups is not None:
        return found
    shape = (MEASURED_EXTENT, MEASURED_EXTENT, plan.request.planned_shapes[0][2])
    with staged(product) as path:
        errors = tuple(measured_errors(matmul_of(import_generated(path)), problem, shape, device))
    return replace(found, measured=errors, measured_shape=shape)
