"""integrations: contexts that replace functions of torch, in any order, also at the first torch.compile."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from typing import Any, NamedTuple, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from modules import ROOT, module_file
from torch import Tensor
from torch.nn import functional

from gemmgen.integrations import replace_grouped_mm, replace_scaled_mm
from gemmgen.integrations.contexts import IMPORTS
from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
BF16, E4M3, INT = torch.bfloat16, torch.float8_e4m3fn, torch.int32
ALL_PLACES: dict[str, tuple[Any, str]] = {
    "grouped": (functional, "grouped_mm"),
    "grouped, older": (torch, "_grouped_mm"),
    "scaled": (functional, "scaled_mm"),
    "scaled, older": (torch, "_scaled_mm"),
}
PLACES = {name: (module, key) for name, (module, key) in ALL_PLACES.items() if hasattr(module, key)}


def kernel_of(name: str, called: list[str], *, scaled: bool) -> Any:
    """Return a kernel of this CPU that notes its calls."""

    def matmul(a: Tensor, b: Tensor, **_: Tensor) -> Tensor:
        called.append(name)
        return a.new_zeros((a.shape[0], b.shape[-1]), dtype=BF16)

    if not scaled:
        return kernel_on_the_cpu(name, matmul, "offs")
    blocks = {"scale_vector": 128, "scale_columns": 128, "out_dtype": BF16}
    return kernel_on_the_cpu(name, matmul, "a_scale", "b_scale", **blocks)


def arguments_of(place: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call of the function in a place."""
    if place.startswith("grouped"):
        a, b = torch.zeros(8, 16, dtype=BF16), torch.zeros(2, 16, 16, dtype=BF16).mT
        return (a, b), {"offs": torch.tensor([3, 8], dtype=INT)}
    a, b = torch.zeros(8, 128).to(E4M3), torch.zeros(16, 128).to(E4M3).T
    if place == "scaled, older":
        return (a, b, torch.ones(8, 1), torch.ones(1, 1)), {"out_dtype": BF16}
    kinds: Any = cast(Any, functional).ScalingType
    return (a, b, torch.ones(8, 1), kinds.BlockWise1x128, torch.ones(4, 1), kinds.BlockWise128x128), {}


class Site(NamedTuple):
    """A function of torch that contexts replace."""

    name: str
    module: Any
    key: str
    called: list[str]

    @property
    def function(self) -> Any:
        return getattr(self.module, self.key)

    def context(self, name: str) -> Any:
        """Return a context of a kernel with a name."""
        replace: Any = replace_grouped_mm if self.name.startswith("grouped") else replace_scaled_mm
        return replace(kernel_of(name, self.called, scaled=self.name.startswith("scaled")))

    def asked(self) -> str:
        """Return the kernel that a call asks; an empty string if it is torch's."""
        self.called.clear()
        given, options = arguments_of(self.name)
        try:
            self.function(*given, **options)
        except (RuntimeError, ValueError):
            assert self.name.startswith("scaled")  # torch computes no scales of blocks on a CPU
        return self.called[0] if self.called else ""


@pytest.fixture(params=PLACES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    module, key = PLACES[request.param]
    own = getattr(module, key)
    yield Site(request.param, module, key, [])
    assert getattr(module, key) is own


def test_an_import_of_another_thread_skips_no_finder_when_a_context_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finder that leaves the context stands for another thread that does so during the search."""
    context = replace_grouped_mm(kernel_of("kernel", [], scaled=False))

    class Leaving(MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == "colorsys":
                context.__exit__(None, None, None)

    context.__enter__()
    others = [finder for finder in sys.meta_path if finder is not IMPORTS]
    monkeypatch.setattr(sys, "meta_path", [IMPORTS, Leaving(), *others])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert importlib.import_module("colorsys")


# --- the order of contexts


def test_the_latest_active_context_computes_in_whatever_order_contexts_are_left(site: Site) -> None:
    own = site.function
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    for order in orders:
        contexts = [site.context(name) for name in "abc"]
        active: list[str] = []
        for name, each in zip("abc", contexts, strict=True):
            each.__enter__()
            active.append(name)
            assert site.asked() == name
        for place in order:
            contexts[place].__exit__(None, None, None)
            active.remove("abc"[place])
            assert site.asked() == (active[-1] if active else "")
        assert site.function is own


def test_a_context_is_entered_again_after_its_end_and_inside_of_itself(site: Site) -> None:
    context, own = site.context("a"), site.function
    for _ in range(3):
        with context as first:
            with site.context("b"), context as again:
                assert (site.asked(), again is first) == ("a", True)
            assert site.asked() == "a"
        assert site.function is own

    @context
    def decorated() -> str:
        return site.asked()

    assert (decorated(), decorated(), site.asked()) == ("a", "a", "")


def test_an_error_leaves_contexts(site: Site) -> None:
    own = site.function
    with pytest.raises(KeyError), site.context("a"), site.context("b"):
        raise KeyError
    assert site.function is own


def test_contexts_of_threads_overlap(site: Site) -> None:
    own, found = site.function, dict[str, str]()
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with site.context("other"):
            found["inside"] = site.asked()
            entered.set()
            left.wait(60)
            found["after"] = site.asked()

    thread = threading.Thread(target=other)
    with site.context("main"):
        thread.start()
        assert entered.wait(60)
        found["main"] = site.asked()  # for all threads
    left.set()
    thread.join()
    assert found == {"inside": "other", "main": "other", "after": "other"}
    assert site.function is own


def test_many_threads_enter_and_leave_at_once(site: Site) -> None:
    own, errors = site.function, list[BaseException]()

    def work() -> None:
        try:
            for _ in range(50):
                with site.context("x"), site.context("y"):
                    given, options = arguments_of(site.name)
                    site.function(*given, **options)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    assert site.function is own


def test_generators_and_tasks_leave_contexts_crosswise(site: Site) -> None:
    own = site.function

    def steps(name: str) -> Generator[str]:
        with site.context(name):
            yield site.asked()

    one, two = steps("one"), steps("two")
    assert (next(one), next(two)) == ("one", "two")
    one.close()
    assert site.asked() == "two"
    two.close()
    assert site.function is own

    async def task(name: str, pauses: int) -> None:
        with site.context(name):
            for _ in range(pauses):
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(task(name, 3 - place) for place, name in enumerate("abc")))

    asyncio.run(tasks())
    assert site.function is own


def test_a_function_that_was_kept_is_torchs_when_no_context_is_active(site: Site) -> None:
    with site.context("a"):
        kept = site.function
    site.called.clear()
    given, options = arguments_of(site.name)
    if site.name.startswith("grouped"):
        assert torch.equal(kept(*given, **options), site.function(*given, **options))
    else:
        with pytest.raises((RuntimeError, ValueError)):
            kept(*given, **options)
    assert site.called == []


def test_another_patch_of_the_function_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    own, counted = site.function, list[str]()

    def counting(function: Any) -> Any:
        def count(*arguments: Any, **options: Any) -> Any:
            counted.append("call")
            return function(*arguments, **options)

        return count

    with monkeypatch.context() as patches:
        patches.setattr(site.module, site.key, counting(own))
        patched = site.function
        with site.context("a"):
            assert (site.asked(), counted) == ("a", [])
        assert site.function is patched
        with ExitStack() as contexts:
            contexts.enter_context(site.context("a"))
            patches.setattr(site.module, site.key, counting(site.function))
            wrapped = site.function
            assert (site.asked(), counted) == ("a", ["call"])
        assert site.function is wrapped  # whoever put it there takes it away
        assert site.asked() == ""
    assert site.function is own


def test_a_context_of_a_place_that_torch_lacks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(functional, "grouped_mm"):
        monkeypatch.delattr(functional, "grouped_mm")
    with replace_grouped_mm(kernel_of("a", [], scaled=False)):
        assert not hasattr(functional, "grouped_mm")
    assert not hasattr(functional, "grouped_mm")


# --- the looks of a function


def test_the_function_in_torchs_place_looks_like_torchs(site: Site) -> None:
    def looks(function: Any) -> dict[str, Any]:
        found = {
            name: getattr(function, name, None)
            for name in ("__name__", "__qualname__", "__module__", "__doc__")
        }
        try:
            return found | {"signature": inspect.signature(function)}
        except ValueError:  # of torch's builtin functions
            return found

    own = site.function
    wanted = looks(own)
    with site.context("a"):
        assert site.function is not own
        assert looks(site.function) == wanted
        assert site.function.__wrapped__ is own
        assert inspect.unwrap(site.function) is own
        assert inspect.isfunction(site.function)
        assert copy.deepcopy(site.function) is site.function


# --- torch's tables


FIRST_COMPILE = """
import sys
import types
import torch
from torch.nn import functional
import {stem}
from gemmgen.integrations import replace_{kind}_mm

places = [(functional, "{kind}_mm"), (torch, "_{kind}_mm")]
own = {{name: getattr(module, name) for module, name in places if hasattr(module, name)}}
assert "torch._inductor" not in sys.modules
with replace_{kind}_mm({stem}):
    compiled = torch.compile(lambda x: (x * 2 + 1).relu())
    x = torch.randn(8, 8)
    assert torch.equal(compiled(x), (x * 2 + 1).relu())
    assert all(getattr(module, name) is not own[name] for module, name in places if name in own)
assert all(getattr(module, name) is own[name] for module, name in places if name in own)
torch.testing.assert_close(torch.compile(lambda a: a @ a, dynamic=True)(x), x @ x)

from torch._inductor import select_algorithm
from torch._inductor.kernel import mm, mm_grouped
from torch._dynamo.trace_rules import get_torch_obj_rule_map
tables = [*vars(select_algorithm.extern_kernels).values(), *get_torch_obj_rule_map()]
tables += [each for module in (mm, mm_grouped) for each in vars(module).values()]
assert own["_{kind}_mm"] in tables
assert own["_{kind}_mm"] in get_torch_obj_rule_map()
functions = [each for each in tables if isinstance(each, types.FunctionType)]
assert len(functions) > 100
assert not [each for each in functions if "gemmgen" in each.__code__.co_filename]
for name, module in list(sys.modules.items()):
    if name.startswith("torch."):
        assert "gemmgen" not in type(getattr(module, "__loader__", None)).__module__, name
print("right")
"""


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "stem"), [("grouped", "h100_bf16_grouped"), ("scaled", "h100_e4m3_blockwise")]
)
def test_the_first_compile_of_a_process_in_a_context_leaves_torchs_tables_torchs(
    kind: str, stem: str, tmp_path: Any
) -> None:
    file = tmp_path / "first.py"
    file.write_text(textwrap.dedent(FIRST_COMPILE.format(kind=kind, stem=stem)))
    paths = [str(ROOT), str(module_file(stem).parent)]
    command = [
        sys.executable,
        "-c",
        f"import sys, runpy; sys.path[:0] = {paths}; runpy.run_path({str(file)!r})",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("right", 0), done.stderr


def test_a_module_of_torch_that_is_imported_in_a_context_finds_torchs_function(
    site: Site, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, name = site.function, f"for_{abs(hash(site.name))}"
    lines = f"import {site.module.__name__} as place\nfound = place.{site.key}\n"
    (tmp_path / f"{name}.py").write_text(lines)
    (tmp_path / f"{name}_broken.py").write_text(f"{lines}raise KeyError")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with site.context("a"):
        stand_in = site.function
        module = __import__(f"torch.{name}", fromlist=["found"])
        with pytest.raises(KeyError):
            __import__(f"torch.{name}_broken")
        elsewhere = __import__(name)
        assert site.function is stand_in
    assert module.found is own
    assert elsewhere.found is stand_in  # of no module of torch
    assert "gemmgen" not in type(module.__spec__.loader).__module__
    assert inspect.getsource(module) == lines
    for each in (f"torch.{name}", name):
        del sys.modules[each]


# --- torch.compile of calls


def by_place(site: Site) -> Callable[..., Tensor]:
    module, key = site.module, site.key

    def function(*arguments: Any) -> Tensor:
        return getattr(module, key)(*arguments[:-1], **arguments[-1])

    return function


def test_a_compiled_call_follows_the_active_contexts(site: Site) -> None:
    """The kernels are other modules: each graph has the names of its own."""
    dynamo: Any = any_torch._dynamo
    dynamo.reset()
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        graphs.extend(str(each.args) + str(each.target) for each in nodes if "_mm" in str(each.target))
        return graph.forward

    is_grouped = site.name.startswith("grouped")
    stems = ("h100_bf16_grouped", "h100_bf16_grouped_512")
    stems = stems if is_grouped else ("h100_e4m3_blockwise", "h100_e4m3_blockwise_rows16")
    replace: Any = replace_grouped_mm if is_grouped else replace_scaled_mm
    contexts = [replace(import_generated(module_file(stem))) for stem in stems]
    given, options = arguments_of(site.name)
    on_meta = [each.to("meta") if isinstance(each, Tensor) else each for each in given]
    options = {name: each.to("meta") if isinstance(each, Tensor) else each for name, each in options.items()}
    function = any_torch.compile(by_place(site), backend=backend, fullgraph=True)
    found: list[str] = []

    def call() -> None:
        function(*on_meta, options)
        found.append(next((stem for stem in reversed(stems) if f"'{stem}'" in graphs[-1]), "torch"))

    contexts[0].__enter__()
    call()
    contexts[1].__enter__()
    call()
    contexts[0].__exit__(None, None, None)
    call()
    contexts[1].__exit__(None, None, None)
    assert found == [stems[0], stems[1], stems[1]]
    graphs.clear()
    for _ in range(12):  # as each step of a training: nothing is compiled again
        for context in contexts:
            with context:
                function(*on_meta, options)
    assert graphs == []
    dynamo.reset()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
def test_a_first_compile_in_a_context_computes_on_a_gpu() -> None:
    """In a process of its own, with the calls that Inductor chooses kernels for."""
    text = """
        import torch
        import h100_bf16_grouped, h100_e4m3_blockwise
        from gemmgen.integrations import replace_grouped_mm, replace_scaled_mm

        x, w = (torch.randn(*s, device="cuda").bfloat16() for s in ((64, 128), (4, 256, 128)))
        offs = torch.tensor([3, 20, 20, 64], dtype=torch.int32, device="cuda")
        def experts(x, w, offs): return torch._grouped_mm(x, w.mT, offs=offs)
        a, b = x.to(torch.float8_e4m3fn), w[0].to(torch.float8_e4m3fn).T
        one = torch.ones((), device="cuda")
        def whole(a, b): return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        wanted = experts(x, w, offs), whole(a, b)
        with replace_grouped_mm(h100_bf16_grouped), replace_scaled_mm(h100_e4m3_blockwise):
            inside = torch.compile(experts)(x, w, offs), torch.compile(whole)(a, b)
        torch._dynamo.reset()
        after = torch.compile(experts)(x, w, offs), torch.compile(whole)(a, b)
        for found in (inside, after):
            for one_of, other in zip(found, wanted):
                torch.testing.assert_close(one_of, other, rtol=2e-2, atol=2e-1)
        print("right")
    """
    paths = [str(ROOT), str(module_file("h100_bf16_grouped").parent)]
    code = f"import sys; sys.path[:0] = {paths}\n{textwrap.dedent(text)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("right", 0), done.stderr
