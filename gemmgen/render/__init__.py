"""Plan to module text, and records to a page: the only Jinja import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path, PurePath
from typing import cast

import jinja2

import gemmgen
from gemmgen import MODULE_FORMAT
from gemmgen.literals import FILTERS, only_visible, visible
from gemmgen.plan.kernel import Kernel
from gemmgen.render.aot import launcher_texts
from gemmgen.render.aot.contract import Contract
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.render.aot.table import FactsTable
from gemmgen.render.blackwell import BlackwellView
from gemmgen.render.kernel import KernelView
from gemmgen.render.packed import PackedView
from gemmgen.render.side import Sides, SidesOf
from gemmgen.render.spelling import fill, fit_call, fit_docstring, fit_sum_call
from gemmgen.render.user_names import with_free_names
from gemmgen.render.wgmma.view import HopperView

VIEWS = cast(
    "Mapping[str, Callable[[Kernel, Sides], KernelView]]",
    {"wgmma": HopperView, "tcgen05": BlackwellView},
)
"""The view of the templates of each instruction; its templates are in the folder of its name.

The cast is safe: a view is only given kernels of its instruction.
"""


def templates_folder() -> Path:
    """Return where the templates are: inside an installed package, or beside it in a checkout."""
    package = Path(gemmgen.__file__).parent
    installed = package / "templates"
    # Of a folder that an older checkout has left behind, the name alone says nothing.
    return installed if (installed / "shared").is_dir() else package.parent / "templates"


@cache
def _environment(*, autoescape: bool = False) -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
        finalize=_visible if autoescape else only_visible,
    )
    filters = cast("dict[str, Callable[..., object]]", found.filters)
    filters.update(FILTERS, fill=fill, fit=fit_call, fit_docstring=fit_docstring, fit_sum=fit_sum_call)
    return found


def _visible(value: object) -> object:
    """Return a value for a page; a text that is no markup loses the characters that no browser shows."""
    return visible(value) if type(value) is str else value


def render_template(name: str, /, **values: object) -> str:
    """Return the text of a template with these values: the same bytes on every machine."""
    return _environment().get_template(name).render(**values)


def render_module(plan: Kernel, sides_of: SidesOf, *, spec_name: str, spec_sha256: str) -> str:
    """Return the source of the plan's module: the same bytes on every machine."""
    source_of = partial(_module_source, sides_of=sides_of, spec_name=spec_name, spec_sha256=spec_sha256)
    return source_of(with_free_names(plan, source_of))


def render_packed(
    plan: Kernel,
    sides_of: SidesOf,
    kernels: tuple[str, ...],
    *,
    spec_name: str,
    spec_sha256: str,
    namespace: str,
) -> str:
    """Return the source of the plan's module in a pack, with compiled kernels of these names.

    Its operator is in a namespace of torch.
    """
    source_of = partial(_module_source, sides_of=sides_of, spec_name=spec_name, spec_sha256=spec_sha256)
    # The kernel was compiled from the other module, which has the same names.
    plan = with_free_names(plan, source_of)
    view = VIEWS[plan.architecture.mma](plan, sides_of(plan))
    return render_template(
        "pack/module.py.j2",
        plan=plan,
        view=PackedView(view, PurePath(spec_name).stem, namespace, kernels),
        module_format=MODULE_FORMAT,
        spec_name=spec_name,
        spec_sha256=spec_sha256,
        **{side.name: side for side in view.sides},
    )


def render_pack(pack: object) -> str:
    """Return the source of a pack's package, by its name, versions, modules and the driver it needs."""
    return render_template("pack/init.py.j2", pack=pack)


def _module_source(plan: Kernel, *, sides_of: SidesOf, spec_name: str, spec_sha256: str) -> str:
    """Return the source of a module as it is for the names in a plan."""
    sides = sides_of(plan)
    return render_template(
        "shared/module.py.j2",
        plan=plan,
        view=VIEWS[plan.architecture.mma](plan, sides),
        module_format=MODULE_FORMAT,
        spec_name=spec_name,
        stem=PurePath(spec_name).stem,
        spec_sha256=spec_sha256,
        **{side.name: side for side in sides},
    )


def render_launcher(
    facts: LaunchFacts, sides_of: SidesOf, *, spec_name: str, spec_sha256: str
) -> dict[str, str]:
    """Return what lets C programs use a kernel's cubin, by the names of the files."""
    values: dict[str, object] = {
        "facts": facts,
        "contract": Contract(facts, sides_of(facts.plan)),
        "table": FactsTable(facts),
        "module_format": MODULE_FORMAT,
        "spec_name": spec_name,
        "spec_sha256": spec_sha256,
    }
    return {
        f"{facts.stem}.h": render_template("aot/header.h.j2", **values),
        f"{facts.stem}.c": render_template("aot/facts.c.j2", **values),
        **launcher_texts(),
    }


def render_page(template: str, page: object) -> str:
    """Return the text of an HTML page, in which no value is markup."""
    return _environment(autoescape=True).get_template(f"{template}.j2").render(page=page)
