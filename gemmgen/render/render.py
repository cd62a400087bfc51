"""Plan to module text: the only Jinja import."""

from __future__ import annotations

from functools import cache

import jinja2

from gemmgen import __version__
from gemmgen.plan.blackwell import Tcgen05Plan
from gemmgen.plan.hopper import WgmmaPlan
from gemmgen.plan.plan import KernelPlan
from gemmgen.render.blackwell import BlackwellView
from gemmgen.render.hopper import HopperView
from gemmgen.render.kernel import KernelView


def _view(plan: KernelPlan) -> tuple[str, KernelView]:
    """Return the template of a plan's instruction family, and the plan as that template sees it."""
    if isinstance(plan, Tcgen05Plan):
        return "blackwell.py.j2", BlackwellView(plan)
    assert isinstance(plan, WgmmaPlan)
    return "hopper.py.j2", HopperView(plan)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gemmgen"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(plan: KernelPlan, *, spec_name: str, spec_sha256: str) -> str:
    """Return the source of the plan's module: the same bytes on every machine."""
    template, view = _view(plan)
    return (
        _environment()
        .get_template(template)
        .render(plan=plan, view=view, version=__version__, spec_name=spec_name, spec_sha256=spec_sha256)
    )
