"""render: what a generated module looks like, for every committed spec and every part of the templates."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from typing import Any, Literal, cast

import jinja2
import pytest
from hopper import computing, hopper, judge
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import COMMITTED, GROUPED_SPECS, SPECS, made

from gemmgen.features.rendering import render
from gemmgen.hardware.elements import DTYPES
from gemmgen.library import choose, sources
from gemmgen.library.assemble import Library, assemble
from gemmgen.library.package import read_library
from gemmgen.library.texts import rendered
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.bounds import most_consumer_registers
from gemmgen.problem import Operand
from gemmgen.product import Product, make
from gemmgen.render.spelling import LINE_LENGTH, fit
from gemmgen.spec.values import TITLE_LIMIT
from tools.rendered import PAIRS, folder_of

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "templates"
PARTS = sorted(path for path in TEMPLATES.rglob("*.j2") if path.parent.name not in ("aot", "report"))
"""Those of modules; the tests of export and report have the others."""


def ruff(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ruff as the project configures it."""
    command = [sys.executable, "-m", "ruff", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)


def assert_clean(*paths: Path) -> None:
    for command in (("format", "--diff"), ("check",)):
        found = ruff(*command, *paths)
        assert found.returncode == 0, found.stdout + found.stderr


# --- the committed modules


@pytest.fixture(scope="session")
def tree(product: Product) -> ast.Module:
    return ast.parse(product.module)


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """The constants of a module by name."""
    return {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {statement.name: statement for statement in tree.body if isinstance(statement, ast.FunctionDef)}


def names(tree: ast.AST) -> set[str]:
    """All names that are read."""
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def is_jitted(function: ast.FunctionDef) -> bool:
    decorators = map(ast.unparse, function.decorator_list)
    return any(decorator.partition("(")[0] == "gluon.jit" for decorator in decorators)


def test_the_generated_modules_are_formatted_and_lint_clean() -> None:
    assert_clean(COMMITTED, *folder_of(PAIRS).glob("*.py"))


def test_a_module_imports_torch_triton_and_the_standard_library_alone(tree: ast.Module) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    others = {"torch", "triton", "gemmgen_launch"}
    assert others <= imported
    assert imported - others <= sys.stdlib_module_names


VERSION_CHECK = (
    "(found := [int(number) for number in triton.__version__.split('.')[:2]]) != [3, 9]",
    "not [3, 9] < found < [4]",
)


def test_a_module_has_no_branch_on_a_constant(product: Product, tree: ast.Module) -> None:
    known = constants(tree).keys() | {"gl", "torch", "triton"} | {"found", "int", "number"}
    branches = (ast.If, ast.IfExp, ast.While, ast.Assert)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, branches)]
    found = [ast.unparse(test) for test in tests if names(test) <= known]
    # A mode of torch is not a constant, and a backward asks for one. Two branches are on a constant: the
    # module says at the top which Triton it was verified with.
    modes = ["torch.is_grad_enabled()"] if "backward" in functions(tree) else []
    assert sorted(found) == sorted([*VERSION_CHECK, *modes])
    docstring, *rest = tree.body
    imports = [*itertools.takewhile(lambda node: isinstance(node, ast.Import | ast.ImportFrom), rest)]
    assert isinstance(tree.body[len([docstring, *imports])], ast.If)
    assert not any("triton." in ast.unparse(node) for node in imports)


def test_a_module_has_no_unused_constant_function_or_import(tree: ast.Module) -> None:
    defined = constants(tree).keys() | functions(tree).keys()
    defined |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    assert defined - names(tree) == {"matmul"} | ({"align", "arrange_scales", "pack_weight"} & defined)


def test_a_function_uses_all_that_it_is_given(tree: ast.Module) -> None:
    for function in functions(tree).values():
        parameters = {parameter.arg for parameter in function.args.args + function.args.kwonlyargs}
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}  # also in a `del`
        assert parameters <= used, function.name


def test_an_aggregate_has_nothing_that_its_module_does_not_read(tree: ast.Module) -> None:
    """Fields and methods alike: those of other modules are left out."""
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and "gluon.aggregate" in map(ast.unparse, node.decorator_list):
            fields = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            assert fields | methods <= read, node.name


def test_a_partition_takes_an_aggregate_and_not_many_arguments(tree: ast.Module) -> None:
    roles = {name: f.args.args for name, f in functions(tree).items() if name.endswith("_partition")}
    for name, parameters in roles.items():
        assert len(parameters) <= 8, name
        assert parameters[0].arg == "args", name


def test_a_ring_counts_up_and_flips(tree: ast.Module) -> None:
    """No stage or phase is a remainder or a quotient of a number of loads, in any loop."""
    known = constants(tree).keys()
    for function in functions(tree).values():
        loops = [node for node in ast.walk(function) if is_jitted(function) and isinstance(node, ast.For)]
        for loop in loops:
            if ast.unparse(loop.iter).startswith("gl.static_range"):
                continue
            for node in ast.walk(loop):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
                    # A part of a tile, or an entry in a list of them, has a number that is no count of loads.
                    assert names(node) <= known | {"i", "part", "entry", "tiles"}, (
                        f"{function.name}: {ast.unparse(node)}"
                    )


ATOMS = {1: "One", 2: "Two", 3: "Three", 4: "Four"}


def test_the_numbers_of_a_docstring_are_those_of_the_plan(product: Product, tree: ast.Module) -> None:
    plan = product.plan
    text = " ".join((ast.get_docstring(tree) or "").split())
    rings = {int(number) for number in re.findall(r"in (\d+) stages", text)}
    assert rings <= {plan.stages}
    assert bool(rings) == (isinstance(plan, Tcgen05Kernel) or not hopper(plan).synchronous)
    assert f"cluster {plan.cluster_m} x {plan.cluster_n} CTAs" in text
    assert f"{plan.smem_bytes:,} bytes per CTA" in text
    assert f"threads {plan.threads} per CTA" in text
    together = plan.occupancy > 1 and plan.schedule_kind != "single_tile"
    assert (f", {plan.occupancy} CTAs per SM" in text) == together


def test_two_known_modules_are_short() -> None:
    """In lines: a Hopper module of two cooperative consumers, and a block-scaled one for pairs of CTAs."""
    for stem, most in (("h100_bf16", 368), ("b200_mxfp8", 560)):
        assert make(ROOT / "specs" / f"{stem}.yaml").module.count("\n") <= most


def test_a_module_reads_from_top_to_bottom(product: Product, tree: ast.Module) -> None:
    assert ast.get_docstring(tree)
    order = list(functions(tree))
    roles = [name for name in order if name.endswith("_partition")]
    kernels = ["matmul_kernel", *["reduction_kernel"] * product.plan.reduces_apart]
    landmarks = [*roles, *kernels, "matmul"]
    assert [name for name in order if name in landmarks] == landmarks
    assert order.index("matmul") < order.index("launch")
    kernel = order.index(kernels[-1])
    assert all(is_jitted(functions(tree)[name]) for name in order[: kernel + 1])
    assert not any(is_jitted(functions(tree)[name]) for name in order[kernel + 1 :])
    # What warp specialization starts is what the plan calls its roles, and each is defined before it is used.
    started = re.findall(r"\b(\w+_partition)\b", ast.unparse(functions(tree)["matmul_kernel"]))
    partitions = product.plan.partitions if product.plan.specialized else ()
    assert started == [f"{partition.role}_partition" for partition in partitions]
    assert set(started) == set(roles)
    for position, name in enumerate(order[: kernel + 1]):
        assert names(functions(tree)[name]) & set(order) <= set(order[:position]), name


def test_every_function_says_what_it_does(tree: ast.Module) -> None:
    assert [name for name, function in functions(tree).items() if not ast.get_docstring(function)] == []


SYNCHRONIZATION = re.compile(
    r"mbarrier\.(?:wait|expect|arrive)\((?P<barrier>\w+)"
    r"|tma\.(?P<store>store_wait)\("
    r"|(?P<fence>fence_async_shared)\("
    r"|(?P<mma>warpgroup_mma_wait)\("
)


def unexplained(function: str) -> Iterator[str]:
    """Waits and fences of a function's text, by barrier, none of which has a comment on it or just above."""
    lines = function.splitlines()
    explained: dict[str, bool] = {}
    for number, line in enumerate(lines):
        if found := SYNCHRONIZATION.search(line):
            subject = next(group for group in found.groups() if group)
            # The comment may stand above the lines that prepare the call: the stage, the phase; or above the
            # first of several calls.
            first = number
            while SYNCHRONIZATION.search(lines[first - 1]):
                first -= 1
            above = lines[max(0, first - 2) : number + 1]
            explained[subject] = explained.get(subject, False) or any("# " in near for near in above)
    return (subject for subject, told in explained.items() if not told)


@pytest.mark.check
def test_every_wait_and_fence_says_what_it_is_for(product: Product, tree: ast.Module) -> None:
    lines = product.module.splitlines()
    for function in functions(tree).values():
        if not is_jitted(function):
            continue
        text = "\n".join(lines[function.lineno - 1 : function.end_lineno])
        docstring = ast.get_docstring(function) or ""
        missing = [subject for subject in unexplained(text) if "await" not in docstring]
        assert missing == [], function.name


def test_a_module_names_no_machine_and_no_time(product: Product) -> None:
    assert "\t" not in product.module
    assert "\r" not in product.module
    for place in (ROOT, Path.home(), Path(sys.prefix), Path.cwd()):
        assert f"{place}/" not in product.module
    assert re.findall(r"(?<![\w.])/\w+/", product.module) == []  # an absolute path
    assert re.findall(r"\b20\d\d-\d\d|\b\d\d:\d\d\b|\bfile:", product.module) == []


def test_a_module_says_what_it_is_made_from(product: Product, tree: ast.Module) -> None:
    docstring = ast.get_docstring(tree) or ""
    plan = product.plan
    assert docstring.startswith(f"{plan.request.title}.\n\n")
    assert f"{product.source.stem}.yaml" in docstring
    assert product.source.sha256 in docstring
    assert f"{plan.smem_bytes:,} bytes per CTA" in docstring
    assert "Needs torch and Triton 3.9." in docstring
    assert "gemmgen_launch.py and gemmgen_driver.py belong beside this file" in docstring
    assert all(len(line) <= LINE_LENGTH for line in docstring.splitlines())


# --- the templates


def test_every_part_is_in_a_committed_module_or_library(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = importlib.import_module("gemmgen.render")
    environment = cast(jinja2.Environment, renderer._environment.__wrapped__())

    def fresh() -> jinja2.Environment:
        return environment

    monkeypatch.setattr(renderer, "_environment", fresh)
    for spec in (*SPECS, *GROUPED_SPECS):
        render(made(spec).plan, spec_name=f"{spec.stem}.yaml", spec_sha256="0" * 64)
    for library in ("h200_e4m3", "h200_bf16_experts"):
        rendered(read_library(ROOT / "libraries" / library))
    rendered(_library_of_blocks())
    assert environment.cache is not None
    used = {name for _, name in environment.cache}  # what was loaded, and its folder
    parts = {path.relative_to(TEMPLATES).as_posix() for path in PARTS}
    parts = {part for part in parts if not part.startswith("pack/")}  # tests/test_pack.py renders packs
    assert parts - used == set(), "no committed spec renders these parts"


def _library_of_blocks() -> Library:
    """Return a library of a committed spec with scales of blocks."""
    found = sources.read([ROOT / "specs" / "h100_e4m3_blockwise.yaml"])
    return assemble("blocks", found, choose(found))


def test_every_template_is_plain() -> None:
    for template in TEMPLATES.rglob("*.j2"):
        text = template.read_text()
        assert "{%-" not in text
        assert "-%}" not in text
        assert "\t" not in text


@pytest.fixture(scope="module")
def base() -> WgmmaKernel:
    return hopper(make(ROOT / "specs" / "h100_bf16.yaml").plan)


KINDS: dict[str, dict[str, object]] = {
    "two": {},
    "lone": {"consumers": 1, "warps_m": 8},
    "four": {"consumers": 4, "cta_tile_m": 256},
    "ping_pong": {"specialization": "ping_pong"},
    "persistent": {"specialization": "none", "consumers": 1, "warps_m": 8, "producer_registers": 0},
    "tiled": {
        "specialization": "none",
        "consumers": 1,
        "warps_m": 8,
        "producer_registers": 0,
        "schedule_kind": "tiled",
    },
    "splits": {"splits": 4, "producer_registers": 40},
    "lone_splits": {"splits": 4, "producer_registers": 40, "consumers": 1, "warps_m": 8},
}
EPILOGUES: dict[str, dict[str, object]] = {
    "none": {},
    "c": {"c": DTYPES["bf16"], "alpha": -1.0, "beta": 0.5},
    "ops": {"ops": ("tensor_scale", "row_scale", "column_bias", "gelu_tanh")},
    "all": {"c": DTYPES["fp32"], "ops": ("row_bias", "column_scale", "silu", "residual", "relu")},
}
MAJORS: dict[str, tuple[Literal["k", "mn"], Literal["k", "mn"]]] = {"tn": ("k", "k"), "nt": ("mn", "mn")}


def legal_plans(base: WgmmaKernel) -> Iterator[WgmmaKernel]:
    """Combinations of kinds, clusters, orders, epilogues, operands and few to many sub-tiles."""
    orders = (("grouped", "m"), ("snake", "n"), ("row", "n"), ("hilbert", "m"))
    structures = combinations(
        KINDS.values(),
        ((1, 1), (2, 1), (2, 2)),
        (0, 1),
        orders,
        EPILOGUES.values(),
        MAJORS.values(),
        (128, 32),
    )
    for number, (kind, (m, n), outstanding, (order, minor), epilogue, (a, b), subtile_n) in enumerate(
        structures
    ):
        if number % 5 in (1, 2, 3):
            continue  # two in five: the length of a cycle is prime to those of the choices above
        bf16 = DTYPES["bf16"]
        chosen = computing(base, a=Operand(bf16, a), b=Operand(bf16, b), **epilogue)
        decisions: dict[str, Any] = {
            "cta_tile_n": 128,
            "mma_n": 128,
            "stages": 2,
            "producer_registers": 32,
            **kind,
            "request": chosen.request,
            "cluster_m": m,
            "cluster_n": n,
            "outstanding_mmas": outstanding,
            "order": order,
            "minor": minor,
            "width": 1 if order == "row" else 8,
            "subtile_n": subtile_n,
        }
        plan = replace(base, **decisions)
        plan = replace(plan, consumer_registers=most_consumer_registers(plan))
        if not judge(plan):
            yield plan


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder that ruff treats like the project's `generated`: it reads the configuration above it."""
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "generated").mkdir()
    return tmp_path / "generated"


@pytest.mark.check
def test_every_combination_of_parts_is_formatted_and_lint_clean(base: WgmmaKernel, modules: Path) -> None:
    plans = list(legal_plans(base))
    for number, plan in enumerate(plans):
        module = render(plan, spec_name="h100_bf16_combined_parts.yaml", spec_sha256="0" * 64)
        (modules / f"m{number}.py").write_text(module)
    assert len(plans) > 50
    assert {plan.consumers for plan in plans} == {1, 2, 4}
    assert {plan.consumers for plan in plans if plan.splits > 1} == {1, 2}
    assert {plan.subtiles for plan in plans} == {1, 4}
    assert {plan.order for plan in plans} == {"grouped", "snake", "row", "hilbert"}
    assert {plan.multicast for plan in plans} == {(), ("b",), ("a", "b")}
    assert {(plan.specialization, plan.schedule_kind) for plan in plans} >= {
        ("ping_pong", "persistent"),
        ("none", "persistent"),
        ("none", "tiled"),
    }
    assert {len(plan.problem.ops) + bool(plan.problem.c) for plan in plans} == {0, 1, 4, 6}
    assert_clean(modules)


ADDED: dict[str, dict[str, object]] = {
    "nothing": {},
    "c": {"c": DTYPES["bf16"], "alpha": -1.0, "beta": 0.5},
    "biases": {"ops": ("row_bias", "column_bias")},
    "residual": {"c": DTYPES["bf16"], "ops": ("column_bias", "residual")},
}
"""What a kernel with a backward may add to A @ B."""


def test_a_module_with_a_backward_is_formatted_and_lint_clean(base: WgmmaKernel, modules: Path) -> None:
    bf16, kinds = DTYPES["bf16"], (KINDS["two"], KINDS["splits"])
    choices = combinations(ADDED.values(), MAJORS.values(), (False, True), kinds, ("m", "long_name_" * 6))
    number = 0
    for number, (added, (a, b), copies, kind, stem) in enumerate(choices, 1):
        of: dict[str, Any] = {
            "a": Operand(bf16, a),
            "b": Operand(bf16, b),
            "copies_misaligned": copies,
            "backward": True,
        }
        decisions: dict[str, Any] = kind
        plan = replace(computing(base, **of, **cast("dict[str, Any]", added)), **decisions)
        (modules / f"m{number}.py").write_text(render(plan, spec_name=f"{stem}.yaml", spec_sha256="0" * 64))
    assert number == 64
    assert_clean(modules)


def titled(plan: WgmmaKernel, title: str) -> WgmmaKernel:
    return replace(plan, request=replace(plan.request, title=title))


def test_the_longest_title_and_a_long_file_name_fit_the_line(base: WgmmaKernel, modules: Path) -> None:
    plan = titled(base, ("word " * TITLE_LIMIT)[: TITLE_LIMIT - 1] + "s")
    module = render(plan, spec_name=f"{'long_name_' * 6}.yaml", spec_sha256="0" * 64)
    (modules / "m.py").write_text(module)
    assert_clean(modules)


TITLES = [
    "import os; os.system(1)",
    "# noqa: a comment?",
    "%s %d $y <%= erb %> [[x]] <!-- -->",
    "a title that ends in a full stop.",
    "the experts' weights, as 'gate' and '''up",
    "naïve 矩阵 ★ matmul",
    "a" * TITLE_LIMIT,
]


@pytest.mark.parametrize("title", TITLES)
def test_a_title_is_data(title: str, tmp_path: Path) -> None:
    _, *spec = (ROOT / "specs" / "h100_bf16.yaml").read_text().splitlines(keepends=True)
    path = tmp_path / "titled.yaml"

    def code(title: str) -> list[str]:
        path.write_text(f'title: "{title}"\n' + "".join(spec), encoding="utf-8")
        module = make(path).module
        assert module.startswith(f'"""{title.rstrip(".")}.\n\n')
        return [ast.dump(statement) for statement in ast.parse(module).body[1:]]

    assert code(title) == code("another")


def test_a_title_that_could_end_the_docstring_stays_in_it(base: WgmmaKernel) -> None:
    """The loader refuses double quotes, braces and backslashes; in a plan made by hand they do nothing."""
    for title in ('"""\nimport nothing("', "a\\", '"', '"""; import nothing; """'):
        tree = ast.parse(render(titled(base, title), spec_name="x.yaml", spec_sha256=""))
        assert (ast.get_docstring(tree, clean=False) or "").startswith(f"{title}.\n")
        assert "nothing" not in ast.dump(ast.Module(tree.body[1:], []))
    # Jinja's braces in a title are a value, not a template.
    braces = render(titled(base, "{{ plan.stages }} {% raw %}"), spec_name="x.yaml", spec_sha256="")
    assert braces.startswith('"""{{ plan.stages }} {% raw %}.\n')


# --- the same bytes everywhere

DIGEST = """
import hashlib, locale, sys
from pathlib import Path
from gemmgen.product import make
try:
    locale.setlocale(locale.LC_ALL, "")
except locale.Error:
    pass
texts = [text for spec in sys.argv[1:] for text in make(Path(spec)).files().values()]
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


@pytest.mark.nightly
def test_every_process_renders_the_same_bytes(tmp_path: Path) -> None:
    environments: list[tuple[Path, dict[str, str]]] = [
        (ROOT, {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"}),
        (tmp_path, {"PYTHONHASHSEED": "4242", "LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "COLUMNS": "20"}),
        (
            tmp_path,
            {"PYTHONHASHSEED": "random", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "HOME": str(tmp_path)},
        ),
    ]
    digests: set[str] = set()
    for directory, environment in environments:
        paths = [os.path.relpath(spec, directory) for spec in SPECS]
        completed = subprocess.run(
            [sys.executable, "-c", DIGEST, *paths],
            cwd=directory,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(completed.stdout)
    assert len(digests) == 1


# --- fit

WORDS = st.text("abcdefghij_", min_size=1, max_size=40).map(lambda word: f"x{word}")
LISTS = st.lists(WORDS, min_size=1, max_size=9, unique=True)
BRACKETS = st.sampled_from([("f(", ")"), ("accumulator = f(", ")"), ("x = [", "]")])


def call(brackets: tuple[str, str], items: list[str], depth: int) -> str:
    """A statement at some depth, under the statements that it depends on."""
    head, tail = brackets
    blocks = "".join(f"{' ' * 4 * level}if x:\n" for level in range(depth))
    return f"{blocks}{' ' * 4 * depth}{fit(head, items, tail, indent=4 * depth)}"


def definition(parameters: list[str]) -> str:
    return f"{fit('def f(', parameters, '):')}\n    pass"


def nested(items: list[str]) -> str:
    """A call in a call, as the layouts are; the outer one is broken where the two do not fit a line."""
    line = fit("X = gl.constexpr(f(", items, "))")
    if "\n" not in line:
        return line
    return fit("X = gl.constexpr(", [fit("f(", items, ")", indent=4)], ")")


STATEMENTS = st.one_of(
    st.builds(call, BRACKETS, LISTS, st.integers(0, 4)),
    st.builds(definition, LISTS),
    st.builds(nested, LISTS.filter(lambda items: len(items) > 1)),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=60))
def test_fit_breaks_lines_where_the_formatter_does(statements: list[str]) -> None:
    text = "\n\n\n".join(statements) + "\n"
    formatted = ruff("format", "--diff", "--stdin-filename", "x.py", "-", text=text)
    assert formatted.returncode == 0, formatted.stdout


def test_the_line_length_is_the_formatters() -> None:
    configuration = (ROOT / "pyproject.toml").read_text()
    assert f"line-length = {LINE_LENGTH}\n" in configuration


def test_fit_uses_the_whole_line() -> None:
    # "f(" + 107 + ")" are 110 columns; then the items alone, indented by 4; then one item a line.
    assert fit("f(", ["a" * 104, "b"], ")") == f"f({'a' * 104}, b)"
    assert fit("f(", ["a" * 103, "b"], ")", indent=4).splitlines() == [
        "f(",
        f"        {'a' * 103},",
        "        b,",
        "    )",
    ]
    assert fit("function(", ["a" * 102, "b"], ")").splitlines() == ["function(", f"    {'a' * 102}, b", ")"]


def test_what_is_said_of_a_launch_is_broken_where_a_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "early.yaml"
    path.write_text(
        "title: two CTAs with roles on each SM, which start early\n"
        "target: h100\n"
        "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"
        "tile: {m: 64, n: 64, k: 64}\n"
        "warp_specialization: {kind: cooperative, consumers: 1}\n"
        "occupancy: 2\n"
        "dependent_launch: {early: b}\n"
    )
    found = ruff("check", "--stdin-filename", "generated/early.py", "-", text=make(path).module)
    assert found.returncode == 0, found.stdout + found.stderr
