"""Advice to a spec that the compiler refuses: its kernels are compiled before anyone is told to use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.lower import Lowered, ShortageError, verdict_on
from gemmgen.plan.decisions import gradient_specs
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.verdicts import PassedOver, Verdict, kernel_digest, knowing, learnt_of
from gemmgen.planner import plan_spec, plans_to_verify
from gemmgen.product import Product
from gemmgen.spec import SpecFile, parse_spec

MOST_ADVICE: Final = 4
"""Kernels that are compiled at most for the advice to a refused spec: each takes seconds."""


def with_compiled_advice(
    source: SpecFile,
    refused: Mapping[str, tuple[PassedOver, ...]],
    lowered_of: Callable[[Product], Lowered],
) -> GemmgenError | None:
    """Return the error of a refused spec, with advice that the compiler has confirmed.

    `refused` has the kernels that the compiler has refused, by the name of the module. `lowered_of` compiles
    a module and raises ShortageError if the registers of a role are too few. If the registers of an advised
    kernel are too few, the planner looks for other advice. After `MOST_ADVICE` kernels, advice that was not
    compiled says that it is predicted. None if nothing was compiled.
    """
    gradients = (parse_spec(text.encode(), stem) for stem, text in gradient_specs(source).items())
    for each in (source, *gradients):
        verdicts = learnt_of(refused.get(each.stem, ()))
        known = len(verdicts)
        for _ in range(MOST_ADVICE):
            with knowing(verdicts):
                plan = next(iter(plans_to_verify(each)), None)
            if plan is None or (verdict := _verdict(each, plan, lowered_of)) is None:
                break
            verdicts[kernel_digest(plan)] = verdict
        if len(verdicts) > known:
            with knowing(verdicts):
                try:
                    plan_spec(each)
                except GemmgenError as error:
                    return error
    return None


def _verdict(source: SpecFile, plan: Kernel, lowered_of: Callable[[Product], Lowered]) -> Verdict | None:
    """Compile a plan that a spec could have; return the verdict on its registers, None on other faults."""
    module = render(plan, spec_name=source.name, spec_sha256=source.sha256)
    try:
        return verdict_on(plan, lowered_of(Product(source, plan, module)).resources)
    except ShortageError as error:
        return error.verdict
    except GemmgenError:
        return None
