"""The launcher beside modules: private names that are gone, modules that are alone, and what callers do."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_gpu import Cuda, always, cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver
from modules import ROOT, module_file
from torch import Tensor

import gemmgen_launch
from gemmgen.launcher_file import LAUNCHER, LAUNCHERS, MARK, launcher_texts
from gemmgen.module import import_generated

BF16 = torch.bfloat16
STEM = "h100_bf16"
NAMES = {
    "torch._C._len_torch_dispatch_stack": "direct",
    "torch._C._are_functorch_transforms_active": "direct",
    "torch._C._functorch.is_functorch_wrapped_tensor": "direct",
    "torch._C._cuda_getCurrentRawStream": "direct",
    "torch.autograd.forward_ad._current_level": "silently by Triton",
    "triton.backends.nvidia.driver.CudaLauncher": "by Triton",
    "triton.backends.nvidia.driver.TMA_DTYPE_DEVICE_TO_HOST": "by Triton",
}
"""Private names, and who launches later calls without them: the launcher directly, or Triton."""


def owner_of(path: str) -> tuple[Any, str]:
    """Return what has a dotted name, and the last part of the name."""
    head, _, name = path.rpartition(".")
    return gemmgen_launch.find_private(head), name


def loaded(path: Path) -> ModuleType:
    """Execute a copy of the launcher."""
    spec = importlib.util.spec_from_file_location("gemmgen_launch", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, FakeDriver]:
    """A module on a GPU and a driver that are not there."""
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file(STEM))
    return module, on_a_fake_driver(module, monkeypatch)


@pytest.mark.parametrize("path", NAMES)
def test_every_call_works_without_a_private_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    owner, name = owner_of(path)
    if name == "_current_level":  # which torch's own unpack_dual reads
        owner = SimpleNamespace(unpack_dual=owner.unpack_dual)
        monkeypatch.setattr(torch.autograd, "forward_ad", owner)
    else:
        monkeypatch.delattr(owner, name, raising=False)  # builds for the CPU have no stream
    if name == "CudaLauncher":  # which the driver that is not there makes

        def kernel(*_: object) -> SimpleNamespace:
            return SimpleNamespace(run=None)

        monkeypatch.setattr(FakeDriver, "kernel", kernel)
    launcher = loaded(ROOT / LAUNCHER)
    monkeypatch.setitem(sys.modules, "gemmgen_launch", launcher)
    module = import_generated(module_file(STEM))
    driver = on_a_fake_driver(module, monkeypatch)
    driver.make_context(0)
    monkeypatch.setattr(launcher, "driver", lambda: driver)
    monkeypatch.setattr(launcher, "current_stream", always(driver.stream))
    a, b, out = cuda(4, 16), cuda(24, 16).T, cuda(4, 24)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert module.matmul(a, b, out=out) is out
    told = [str(each.message) for each in caught if "gemmgen_launch" in str(each.message)]
    by_triton = NAMES[path] != "direct"
    assert len(told) == (NAMES[path] == "by Triton")
    assert all(name in text and "takes longer" in text for text in told)
    assert (len(driver.jit), len(driver.direct)) == ((3, 0) if by_triton else (1, 2))


# --- where modules find it


WHERE = {
    "beside a top-level module": ("import h100_bf16 as module", "gemmgen_launch"),
    "in a package": ("import pack.h100_bf16 as module", "pack.gemmgen_launch"),
}


@pytest.mark.parametrize("case", WHERE)
def test_a_module_finds_the_launcher_beside_it(case: str, tmp_path: Path) -> None:
    statement, name = WHERE[case]
    package = tmp_path / "pack" if "package" in case else tmp_path
    package.mkdir(exist_ok=True)
    for file in (module_file(STEM), *(ROOT / name for name in LAUNCHERS)):
        shutil.copy(file, package)
    program = (
        "import sys\n"
        f"others = [path for path in sys.path if path not in ({str(ROOT)!r}, '')]\n"
        f"sys.path = [{str(tmp_path)!r}, *others]\n"
        f"{statement}\n"
        "said = module.matmul.__doc__.splitlines()[0]\n"
        "print(type(module.call).__module__, said, 'gemmgen' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "error::UserWarning", "-c", program]
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout == f"{name} Return a @ b. False\n", found.stderr


def executed(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another process, which finds modules in a folder first."""
    others = f"[path for path in sys.path if path not in ({str(ROOT)!r}, '')]"
    text = f"import sys\nsys.path = [{str(folder)!r}, *{others}]\n{program}"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", WHERE)
def test_a_launcher_that_cannot_be_imported_is_not_taken_for_a_missing_one(case: str, tmp_path: Path) -> None:
    statement, _ = WHERE[case]
    package = tmp_path / "pack" if "package" in case else tmp_path
    package.mkdir(exist_ok=True)
    shutil.copy(module_file(STEM), package)
    (package / LAUNCHER).write_text("from torch import a_name_of_another_release\n", encoding="utf-8")
    found = executed(tmp_path, statement)
    assert found.returncode
    assert "cannot import name 'a_name_of_another_release'" in found.stderr
    assert "without" not in found.stderr


def test_modules_of_one_name_in_two_packages_have_an_operator_each(tmp_path: Path) -> None:
    for name, stem in (("one", STEM), ("two", "h100_bf16_bias_gelu")):
        (tmp_path / name).mkdir()
        for launcher in LAUNCHERS:
            shutil.copy(ROOT / launcher, tmp_path / name)
        shutil.copy(module_file(stem), tmp_path / name / "same.py")
    program = (
        "import torch, one.same, two.same\n"
        "for name in ('one__same', 'two__same'):\n"
        "    print(len(getattr(torch.ops.gemmgen, name).default._schema.arguments))\n"
    )
    found = executed(tmp_path, program)
    assert found.stdout == "2\n3\n", found.stderr


def test_the_launcher_knows_itself_and_needs_no_gemmgen() -> None:
    for text in launcher_texts().values():
        assert MARK.decode() in text
        assert not re.search(r"(import|from) gemmgen\b", text)


def test_private_names_stand_in_the_launcher_alone() -> None:
    for path in (ROOT / "generated").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        private = [name for name in ("_C.", "torch._C", "driver.active", "backends.nvidia") if name in text]
        assert path.name in LAUNCHERS or not private, f"{path.name} has {private}"


# --- what callers do


META: dict[str, Any] = {"device": "meta", "dtype": BF16}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that is registered as one that is imported: torch.compile looks it up."""
    module = import_generated(module_file(STEM))
    monkeypatch.setitem(sys.modules, STEM, module)
    return module


def test_rows_that_only_a_run_knows_are_compiled(module: ModuleType) -> None:
    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.reset()
    w = torch.empty(256, 128, **META)

    def routed(x: Tensor, sizes: Tensor) -> Tensor:
        first, second = cast(Any, sizes).tolist()
        check: Any = cast(Any, torch)._check
        check(first >= 0)
        check(second >= 0)
        check(first + second <= x.shape[0])
        return module.matmul(x.narrow(0, 0, first), w.T)

    compiled: Any = cast(Any, torch).compile(routed, fullgraph=True, backend="eager")
    with dynamo.config.patch(capture_scalar_outputs=True):
        assert compiled(torch.empty(64, 128, **META), torch.tensor([3, 61])).shape == (3, 256)
        assert compiled(torch.empty(64, 128, **META), torch.tensor([61, 2])).shape == (61, 256)


def test_a_batch_without_an_upper_bound_is_exported(module: ModuleType) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.empty(256, 128, **META), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return module.matmul(x, self.w.T)

    export: Any = cast(Any, torch).export
    shapes = {"x": {0: export.Dim("m")}}
    exported = export.export(Layer(), (torch.empty(64, 128, **META),), dynamic_shapes=shapes)
    assert exported.module()(torch.empty(1000, 128, **META)).shape == (1000, 256)


def test_flops_are_counted(module: ModuleType) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x, w = torch.empty(64, 128, **META), torch.empty(256, 128, **META)
    with FlopCounterMode(display=False) as counted:
        module.matmul(x, w.T)
        module.matmul(x, w.T, out=torch.empty(64, 256, **META))
    assert counted.get_total_flops() == 2 * 2 * 64 * 128 * 256


def test_a_forgotten_transpose_is_named(module: ModuleType) -> None:
    a, b = torch.empty(64, 64, **META), torch.empty(64, 64, **META)
    text = r"^b must lie in memory as \[N, K\], found strides \(64, 1\): pass weight.T of a weight \[N, K\]$"
    with pytest.raises(ValueError, match=text):
        module.matmul(a, b)


@pytest.mark.parametrize("rows", [(2, 3), (2, 3, 5), (0, 3), (1, 1)])
def test_activations_of_more_dimensions_are_rows(module: ModuleType, rows: tuple[int, ...]) -> None:
    w = torch.empty(21, 16, **META)
    assert module.matmul(torch.empty(*rows, 16, **META), w.T).shape == (*rows, 21)

    def layer(x: Tensor) -> Tensor:
        return module.matmul(x, w.T)

    compiled: Any = cast(Any, torch).compile(layer, fullgraph=True, backend="eager")
    assert compiled(torch.empty(*rows, 16, **META)).shape == (*rows, 21)


def test_rows_of_more_dimensions_are_written_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module, driver = on_a_gpu(monkeypatch)
    x, w, out = cuda(2, 4, 16), cuda(24, 16).T, cuda(2, 4, 24)
    for _ in range(3):
        assert module.matmul(x, w, out=out) is out
    assert (len(driver.jit), len(driver.direct)) == (1, 2)
    *_, d = driver.jit[0][-1]
    assert (d.base.data_ptr(), d.shape) == (out.data_ptr(), (8, 24))
    with pytest.raises(ValueError, match=r"out must have shape \[2, 4, 'N'\], found \[8, 24\]"):
        module.matmul(x, w, out=out.view(8, 24))


def test_scales_may_be_columns_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file("h100_e4m3_scaled"))
    driver = on_a_fake_driver(module, monkeypatch)
    a, b = (torch.zeros(n, 32, dtype=torch.float8_e4m3fn).as_subclass(Cuda) for n in (4, 24))
    vectors = {
        name: torch.zeros({"M": 4, "N": 24}[row["axes"][0]], dtype=row["dtype"]).as_subclass(Cuda)
        for name, row in module.ARGUMENTS.items()
        if len(row["axes"]) == 1
    }
    assert "row_scale" in vectors
    columns = {
        name: vector[:, None] if module.ARGUMENTS[name]["axes"] == ("M",) else vector[None]
        for name, vector in vectors.items()
    }
    out = torch.zeros(4, 24, dtype=module.ARGUMENTS["out"]["dtype"]).as_subclass(Cuda)
    for given in (vectors, columns):
        for _ in range(2):
            assert module.matmul(a, b.T, **given, out=out) is out
    assert (len(driver.jit), len(driver.direct)) == (2, 2)
    assert [each.shape for each in driver.jit[0][-1]] == [each.shape for each in driver.jit[1][-1]]


@pytest.mark.gpu
def test_a_module_without_the_launcher_computes_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setitem(sys.modules, "gemmgen_launch", None)
    with pytest.warns(UserWarning, match="calls need `out` and are unchecked"):
        module = import_generated(module_file(STEM))
    a, b = (torch.randint(-3, 4, (n, 128), device="cuda").to(BF16) for n in (100, 264))
    results: list[Tensor] = []

    def work() -> None:
        out = torch.empty(100, 264, device="cuda", dtype=BF16)
        results.append(module.matmul(a, b.T, out=out))

    thread = threading.Thread(target=work)  # whose first CUDA call this is
    thread.start()
    thread.join()
    (found,) = results
    assert torch.equal(found, (a.float() @ b.T.float()).to(BF16))
