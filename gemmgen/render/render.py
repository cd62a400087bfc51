"""Plan to module text: the only Jinja import."""

from __future__ import annotations

from functools import cache

import jinja2

from gemmgen import __version__
from gemmgen.plan import Plan
from gemmgen.render.view import View

MODULE_TEMPLATES = {"wgmma": "hopper.py.j2"}
"""The template of each matrix instruction family."""


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


def render(plan: Plan, *, spec_name: str, spec_sha256: str) -> str:
    """Return the source of the plan's module: the same bytes on every machine."""
    template = _environment().get_template(MODULE_TEMPLATES[plan.architecture.mma])
    return template.render(
        plan=plan, view=View(plan), version=__version__, spec_name=spec_name, spec_sha256=spec_sha256
    )
