"""Calls of several threads at once: first calls, which compile and load kernels, and calls that follow.

The compiler that is not there behaves as Triton's: it must not run in two threads, and it marks a kernel as
loaded before it has the kernel's handle.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from fake_gpu import Cuda, always, on_a_fake_gpu
from fake_triton import FakeDriver, launch_on, on_a_fake_driver
from modules import ROOT, libraries_folder, module_file
from torch import Tensor

from gemmgen.launcher_file import LAUNCHER, LAUNCHERS
from gemmgen.module import import_generated

THREADS = 8
STEMS = (
    "h100_bf16",
    "h100_bf16_rows16_split2",
    "h100_bf16_split8_atomic",
    "h100_bf16_split8_parallel",
    "h100_bf16_misaligned",
)
"""Modules of one kernel, with counters, with sums in D, with a second kernel, with a kernel that copies."""


@dataclass
class Compiler:
    """Triton's, on a driver that is not there: slow, and right in one thread at a time."""

    driver: FakeDriver
    compiled: Counter[str] = field(default_factory=Counter[str])
    """How often each kernel was compiled."""
    most: int = 0
    """The most threads that compiled at the same time."""
    refuses: str = ""
    """The name of a kernel whose first compilation raises."""
    _running: int = 0
    _handles: dict[int, int | None] = field(default_factory=dict[int, "int | None"])

    def run(self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: Any) -> Any:
        """Launch a kernel, which the first launch compiles and loads."""
        if id(kernel) not in self._handles:
            self.compile(kernel, f"{kernel.fn.__module__}.{kernel.fn.__name__}")
        if self._handles[id(kernel)] is None:
            raise RuntimeError("Triton Error [CUDA]: invalid resource handle")
        return self.driver[grid](*arguments, **options)

    def compile(self, kernel: Any, name: str) -> None:
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            time.sleep(0.01)
            self.compiled[name] += 1
            if self.refuses and name.endswith(self.refuses):
                self.refuses = ""
                raise RuntimeError("PassManager::run failed")
            self._handles[id(kernel)] = None
            time.sleep(0.01)
            self._handles[id(kernel)] = 4711
        finally:
            self._running -= 1


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler, a driver and a GPU that are not there, for every module that is imported."""
    on_a_fake_gpu(monkeypatch)
    driver = on_a_fake_driver(cast(Any, SimpleNamespace(matmul_kernel=None)), monkeypatch)
    found = Compiler(driver)

    def run(kernel: Any, *arguments: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> Any:
        assert not warmup
        return found.run(kernel, grid, arguments, options)

    monkeypatch.setattr(cast(Any, triton).runtime.jit.JITFunction, "run", run)
    return found


def at_once(work: Callable[[int], object]) -> list[BaseException]:
    """Let threads do work by their numbers, all at once; return the errors."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def go(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def with_a_launcher_of_its_own(stem: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with a copy of the launcher that no other module has, as one in a package."""
    spec = spec_from_file_location("gemmgen_launch", ROOT / LAUNCHER)
    assert spec
    assert spec.loader
    launcher = module_from_spec(spec)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "gemmgen_launch", launcher)
        spec.loader.exec_module(launcher)
        return import_generated(module_file(stem))


def matrices(stem: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, B and D on a GPU that is not there; a module that copies gets an A that it has to copy."""
    columns = 17 if "misaligned" in stem else 16
    a, b, d = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((4, columns), (24, 16), (4, 24)))
    return a.as_subclass(Cuda)[:, :16], b.as_subclass(Cuda).T, d.as_subclass(Cuda)


@pytest.mark.parametrize("copies", [False, True], ids=["one launcher", "copies of the launcher"])
def test_first_calls_compile_each_kernel_once_and_one_at_a_time(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    modules = [
        with_a_launcher_of_its_own(stem, monkeypatch) if copies else import_generated(module_file(stem))
        for stem in STEMS
    ]
    assert len({module.call.__class__ for module in modules}) == (len(STEMS) if copies else 1)

    def work(number: int) -> None:
        for i in range(len(STEMS)):
            index = (number + i) % len(STEMS)
            a, b, out = matrices(STEMS[index])
            for _ in range(3):
                assert modules[index].matmul(a, b, out=out) is out

    assert at_once(work) == []
    names = {f"{stem}.matmul_kernel" for stem in STEMS}
    names |= {"h100_bf16_split8_parallel.reduction_kernel", "h100_bf16_misaligned.copy_kernel"}
    assert compiler.compiled == dict.fromkeys(names, 1)
    assert compiler.most == 1


@pytest.mark.parametrize("call", ["matmul", "warmup", "operator"])
def test_first_calls_of_a_library_compile_each_kernel_once_and_one_at_a_time(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] != "h200_bf16"}
    library = import_module("h200_bf16")
    try:
        of_driver, launcher = (import_module(f"h200_bf16.{name[:-3]}") for name in LAUNCHERS)
        launch_on(compiler.driver, of_driver, launcher, monkeypatch)
        monkeypatch.setattr(torch.cuda, "get_device_name", always(library.GPU))
        shapes = [(16, 64, 4096), (64, 256, 4096), (300, 4096, 4096), (2048, 2048, 2048)]
        names = {library.choose(*shape, gpu=library.GPU).kernel for shape in shapes}
        assert len(names) > 2

        def work(number: int) -> None:
            for i in range(len(shapes)):
                m, n, k = shapes[(number + i) % len(shapes)]
                if call == "warmup":
                    library.warmup([(m, n, k)])
                    continue
                a, b = (
                    torch.empty(*shape, dtype=torch.bfloat16).as_subclass(Cuda) for shape in ((m, k), (n, k))
                )
                matmul = library.matmul if call == "matmul" else library.library.run_as_operator
                assert matmul(a, b.T).shape == (m, n)

        assert at_once(work) == []
    finally:
        sys.modules.clear()
        sys.modules.update(kept)
    compiled = {name for name in compiler.compiled if name.endswith("matmul_kernel")}
    assert compiled == {f"h200_bf16.{name}.matmul_kernel" for name in names}
    assert {*compiler.compiled.values()} == {1}
    assert compiler.most == 1


def test_a_compilation_that_fails_fails_one_call(compiler: Compiler) -> None:
    compiler.refuses = "h100_bf16_rows16_split2.matmul_kernel"
    modules = {stem: import_generated(module_file(stem)) for stem in STEMS[:2]}

    def work(number: int) -> None:
        stem = STEMS[number % 2]
        a, b, out = matrices(stem)
        for _ in range(3):
            assert modules[stem].matmul(a, b, out=out) is out

    (error,) = at_once(work)
    assert str(error) == "PassManager::run failed"
    assert compiler.compiled == {"h100_bf16.matmul_kernel": 1, "h100_bf16_rows16_split2.matmul_kernel": 2}
    assert compiler.most == 1


def test_a_thread_that_compiles_does_not_hold_up_calls_that_are_known(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, other = (import_generated(module_file(stem)) for stem in STEMS[:2])
    a, b, out = matrices(STEMS[0])
    known.matmul(a, b, out=out)
    compiles, may_end = threading.Event(), threading.Event()
    compile_fast = Compiler.compile

    def compile_slowly(*given: Any) -> None:
        compiles.set()
        assert may_end.wait(timeout=60)
        compile_fast(*given)

    monkeypatch.setattr(Compiler, "compile", compile_slowly)
    thread = threading.Thread(target=other.matmul, args=matrices(STEMS[1])[:2])
    thread.start()
    assert compiles.wait(timeout=60)
    launched = len(compiler.driver.direct)
    known.matmul(a, b, out=out)
    assert len(compiler.driver.direct) == launched + 1
    may_end.set()
    thread.join()
    assert compiler.compiled == {f"{stem}.matmul_kernel": 1 for stem in STEMS[:2]}


# --- a GPU


FIRST_CALLS = """
import importlib, threading
import torch

names = {names}
bf16 = torch.bfloat16
torch.manual_seed(0)
shapes = ((1, 512), (64, 1024), (300, 264), (640, 1280))
data = [tuple(torch.randint(-1, 2, (x, 1024), device="cuda").to(bf16) for x in shape) for shape in shapes]
wanted = [(a.float() @ b.float().T).to(bf16) for a, b in data]  # exact sums, rounded once
torch.cuda.synchronize()
wrong, errors, start = [], [], threading.Barrier(8)

def go(number):
    start.wait()
    stream = torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
    try:
        with torch.cuda.stream(stream):
            for i in range(16):
                index, name = (number + i) % 4, names[(number + i // 4) % len(names)]
                a, b = data[index]
                d = importlib.import_module(name).matmul(a, b.T)
                stream.synchronize()
                if not torch.equal(d, wanted[index]):
                    wrong.append((number, i, name))
    except BaseException as error:
        errors.append(f"{{type(error).__name__}}: {{error}}"[:200])

threads = [threading.Thread(target=go, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors, wrong)
"""
MODULES = ("h100_bf16", "h100_bf16_rows16_split2", "h100_bf16_ping_pong", "h100_bf16_split8_parallel")


@pytest.mark.gpu
@pytest.mark.parametrize("names", [MODULES, ("h200_bf16", "h100_bf16")], ids=["modules", "library"])
def test_the_first_calls_of_a_process_are_right_on_the_gpu(names: tuple[str, ...], tmp_path: Any) -> None:
    known = os.environ.get("PYTHONPATH", "")  # which may have the Triton that the modules need
    folders = os.pathsep.join([str(ROOT / "generated"), str(libraries_folder()), str(ROOT), known])
    environment = os.environ | {"PYTHONPATH": folders, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", FIRST_CALLS.format(names=names)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "[] []\n", f"{found.returncode}: {found.stdout}{found.stderr}"
