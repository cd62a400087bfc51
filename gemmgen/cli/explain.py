"""The command that explains codes of diagnostics, words of specs, and the numerics of kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmgen.cli.options import Json
from gemmgen.cli.reporting import end, print_json, say
from gemmgen.cli.running import progressing, run_each
from gemmgen.cli.texts import columns
from gemmgen.errors import GemmgenError

if TYPE_CHECKING:
    from gemmgen.numerics.error_report import ErrorReport
    from gemmgen.product import Product


def explain_command(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RULE…|WORD…|SPEC…]",
            help="Code of a diagnostic, or a word of specs: smem-capacity, occupancy, silu; specs with "
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
    from gemmgen.cli.explanations import explanation_of, explanations

    found = [explanation_of(code) for code in codes] if codes else list(explanations().values())
    if as_json:
        print_json({each.code: each.as_dict() for each in found})
    elif codes:
        say("\n\n".join(map(str, found)))
    else:
        say("\n".join(columns([{"rule": each.code, "says": each.summary} for each in found])))


def _explain_numerics(specs: list[Path], *, as_json: bool) -> None:
    """Print the arithmetic and the errors of specs."""
    from gemmgen.numerics.error_report import error_report
    from gemmgen.product import make

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
    from gemmgen.device import require_gpu
    from gemmgen.features.checking import sides_of
    from gemmgen.module import import_generated, matmul_of
    from gemmgen.numerics.error_report import MEASURED_EXTENT, measured_errors
    from gemmgen.product import staged

    plan, problem = product.plan, product.source.problem
    try:
        device = require_gpu(plan.architecture)
    except GemmgenError:
        return found
    if problem.groups is not None:
        return found
    shape = (MEASURED_EXTENT, MEASURED_EXTENT, plan.request.planned_shapes[0][2])
    with staged(product) as path:
        errors = tuple(
            measured_errors(matmul_of(import_generated(path)), problem, sides_of(problem), shape, device)
        )
    return replace(found, measured=errors, measured_shape=shape)
