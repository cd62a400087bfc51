"""A library times its rule's first kernels at the first call with new sizes, if it was told to."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from fake_gpu import Cuda
from modules import ROOT, libraries_folder

import gemmgen_tuning
from gemmgen import library
from gemmgen.library import package
from gemmgen.library.assemble import assemble
from gemmgen.library.sources import read
from gemmgen_tuning import Tuner, default_folder, key_of

GPU, OTHER_GPU = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
TIMES = {"h100_bf16_rows8": 9.0, "h100_bf16_128x128": 7.0, "h100_bf16": 8.0}
SHAPE = 64, 4096, 4096
quick = pytest.mark.quick


@pytest.fixture
def made(tmp_path: Path) -> Generator[ModuleType]:
    """A library of three kernels without a table, imported."""
    found = read([ROOT / "specs" / f"{stem}.yaml" for stem in TIMES])
    package.write(assemble("firsts", found, library.choose(found)), tmp_path)
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module("firsts")
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "firsts"]:
            del sys.modules[name]


def of_equal_times(launches: Mapping[str, Any], _: float) -> dict[str, float]:
    return dict.fromkeys(launches, 1.0)


class Timer:
    """Times launches on a GPU that there is not: each takes as long as its name is said to."""

    def __init__(self, times: Mapping[str, float]) -> None:
        self.times, self.asked = times, list[tuple[str, ...]]()

    def __call__(self, launches: Mapping[str, Callable[[], Any]], budget_ms: float) -> dict[str, float]:
        assert budget_ms == 20
        self.asked.append(tuple(launches))
        for launch in launches.values():
            launch()
        return {name: self.times[name] for name in launches}


class Host:
    """A kernel's host side that only counts."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, *inputs: torch.Tensor, **_: object) -> torch.Tensor:
        self.runs += 1
        return inputs[0]


@pytest.fixture
def calls(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Host]:
    """The host sides of the kernels of the library, on a GPU that there is not."""
    hosts = {name: Host() for name in made.KERNELS}
    monkeypatch.setattr(made.library, "host_of", hosts.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_name", MagicMock(return_value=GPU))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", MagicMock())
    return hosts


def timed_by(monkeypatch: pytest.MonkeyPatch) -> Timer:
    """Let launches take the times of `TIMES`."""
    timer = Timer(TIMES)
    monkeypatch.setattr(sys.modules["firsts.gemmgen_tuning"], "timed", timer)
    return timer


def tensors(m: int = 64, n: int = 4096, k: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.empty(rows, k, dtype=torch.bfloat16) for rows in (m, n))
    return a.as_subclass(Cuda), b.as_subclass(Cuda).T


@quick
def test_the_first_call_with_new_sizes_times_kernels_and_later_ones_take_the_fastest(
    made: ModuleType, calls: dict[str, Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timer = timed_by(monkeypatch)
    made.tune_on_first_use(folder=tmp_path / "tuned")
    for _ in range(3):
        made.library.host_for(tensors(), None)
    (names,) = timer.asked
    assert set(names) == set(made.KERNELS)
    found = made.choose(*SHAPE, gpu=GPU)
    assert found.kernel == "h100_bf16_128x128"
    assert found.why.startswith(f"timed on {GPU} at first use, 7.0 us; ")
    assert found.why.endswith("; h100_bf16 8.0; h100_bf16_rows8 9.0")
    assert made.library.host_for(tensors(), None) is calls[found.kernel]
    # Rows that round up to the same multiple were timed, others were not, and neither was another GPU.
    made.library.host_for(tensors(m=63), None)
    assert len(timer.asked) == 1
    made.library.host_for(tensors(m=65), None)
    assert len(timer.asked) == 2
    assert "not tuned" in made.choose(*SHAPE, gpu=OTHER_GPU).why


@quick
def test_a_later_process_reads_what_was_timed(
    made: ModuleType, calls: dict[str, Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timer = timed_by(monkeypatch)
    made.tune_on_first_use(folder=tmp_path)
    made.library.host_for(tensors(), None)
    made.tune_on_first_use(folder=tmp_path)  # forgets all that this process knows
    made.library.host_for(tensors(), None)
    assert len(timer.asked) == 1
    assert "timed on" in made.choose(*SHAPE, gpu=GPU).why
    made.tune_on_first_use(0)
    assert "not tuned" in made.choose(*SHAPE, gpu=GPU).why


@quick
def test_two_kernels_are_timed_if_two_are_asked_for(
    made: ModuleType, calls: dict[str, Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timer = timed_by(monkeypatch)
    made.tune_on_first_use(2, folder=tmp_path)
    made.library.host_for(tensors(), None)
    forecast = made.library.table.forecast(GPU, is_measured=False)
    wanted = sorted(forecast.candidates(SHAPE), key=lambda name: forecast.expected(name, SHAPE))[:2]
    assert timer.asked == [tuple(wanted)]


@quick
def test_a_capture_times_nothing_and_its_choice_is_not_kept(
    made: ModuleType, calls: dict[str, Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timer = timed_by(monkeypatch)
    made.tune_on_first_use(folder=tmp_path)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made.library.host_for(tensors(), None)
    assert timer.asked == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert made.library.host_for(tensors(), None) is calls[made.choose(*SHAPE, gpu=GPU).kernel]
    assert len(timer.asked) == 1


@quick
def test_without_memory_the_rule_chooses(
    made: ModuleType, calls: dict[str, Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def timed(*_: object) -> dict[str, float]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(sys.modules["firsts.gemmgen_tuning"], "timed", timed)
    made.tune_on_first_use(folder=tmp_path)
    assert made.library.host_for(tensors(), None) is calls[made.choose(*SHAPE, gpu=GPU).kernel]
    assert "not tuned" in made.choose(*SHAPE, gpu=GPU).why
    assert [*tmp_path.iterdir()] == [tmp_path / "firsts"]


@quick
def test_sizes_that_the_table_has_are_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    table = importlib.import_module("h200_bf16").library.table
    least, n, k = next(iter(table.tuned))
    monkeypatch.setattr(table, "tuner", Tuner("x", table.kernels, 3, 20, tmp_path))
    assert table.untimed((least, n, k), table.gpu) == []
    assert len(table.untimed((least, n + 8, k), table.gpu)) == 3
    assert len(table.untimed((least, n, k), OTHER_GPU)) == 3


@quick
def test_a_warmup_of_groups_times_nothing_because_they_are_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    experts = importlib.import_module("h200_bf16_experts").library
    asked, host = list[bool](), Host()

    def tune(*_: object, times: bool) -> bool:
        asked.append(times)
        return not times

    monkeypatch.setattr(experts, "tune", tune)
    monkeypatch.setattr(experts, "host_of", MagicMock(return_value=host))
    monkeypatch.setattr(experts, "chosen", {})
    monkeypatch.setattr(experts.table, "tuner", Tuner("x", experts.table.kernels, 3, 20, tmp_path))
    experts.warmup([(64, 256, 128)], device="cpu")
    assert (asked, host.runs, experts.chosen) == ([False], 1, {})


@quick
def test_libraries_of_other_kernels_have_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    digests = {importlib.import_module(name).library.table.digest for name in ("h200_bf16", "h200_e4m3")}
    assert len(digests) == 2
    assert all(len(digest) == 12 for digest in digests)


@pytest.mark.parametrize(("top", "budget_ms"), [(1, 20), (-1, 20), (3, 0)])
@quick
def test_a_number_that_times_nothing_is_refused(made: ModuleType, top: int, budget_ms: float) -> None:
    with pytest.raises(ValueError, match=f"top must be 0, or 2 or more, .* found {top} and {budget_ms:.1f}"):
        made.tune_on_first_use(top, budget_ms)


@quick
def test_half_a_kernel_and_a_folder_that_is_a_file_are_refused(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        made.tune_on_first_use(2.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder must be a folder, found the file"):
        made.tune_on_first_use(folder=tmp_path / "file")


# --- files


@quick
@pytest.mark.parametrize(
    ("m", "rounded"),
    [(1, 1), (7, 7), (16, 16), (17, 18), (63, 64), (65, 72), (129, 144), (1000, 1024)],
)
def test_rows_round_up_to_a_sixteenth_of_a_power_of_two(m: int, rounded: int) -> None:
    assert key_of((m, 5, 6)) == f"{rounded}x5x6"
    assert key_of((rounded, 5, 6)) == f"{rounded}x5x6"


@quick
def test_a_file_that_is_cut_or_of_other_kernels_has_nothing(tmp_path: Path) -> None:
    tuner = Tuner("x", ("one", "two"), 3, 20, tmp_path)
    for text in ("", "[]", "{", '{"1x2x3": {"three": 1.0}}', '{"1x2x3": {}}', '{"1x2x3": {"one": "fast"}}'):
        tuner.path(GPU).write_text(text)
        assert tuner.read(GPU) == {}
    tuner.path(GPU).write_text('{"1x2x3": {"one": 2.5}, "4x5x6": {"three": 1.0}}')
    assert tuner.read(GPU) == {"1x2x3": {"one": 2.5}}


@quick
def test_processes_add_to_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmgen_tuning, "timed", of_equal_times)
    one, other = (Tuner("x", ("one", "two"), 3, 20, tmp_path) for _ in range(2))
    one.time(GPU, (1, 2, 3), {"one": int})
    assert other.of(GPU, (1, 2, 3)) == {"one": 1.0}
    one.time(GPU, (4, 5, 6), {"one": int})
    other.time(GPU, (7, 8, 9), {"two": int})
    assert set(json.loads(one.path(GPU).read_text())) == {"1x2x3", "4x5x6", "7x8x9"}


@quick
def test_threads_time_sizes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, start = list[int](), threading.Barrier(4)

    def timed(launches: Mapping[str, Any], _: float) -> dict[str, float]:
        asked.append(threading.get_ident())
        return dict.fromkeys(launches, 1.0)

    def use() -> None:
        start.wait()
        tuner.time(GPU, (1, 2, 3), {"one": int})

    monkeypatch.setattr(gemmgen_tuning, "timed", timed)
    tuner = Tuner("x", ("one", "two"), 3, 20, tmp_path)
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


@quick
def test_a_folder_that_cannot_be_written_is_told_and_times_count_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemmgen_tuning, "timed", of_equal_times)
    (tmp_path / "file").write_text("")
    tuner = Tuner("x", ("one", "two"), 3, 20, tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be written, .*: later processes time again"):
        tuner.time(GPU, (1, 2, 3), {"one": int})
    assert tuner.of(GPU, (1, 2, 3)) == {"one": 1.0}


@quick
def test_files_are_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMMGEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_folder() == Path.home() / ".cache" / "gemmgen" / "tuned"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/gemmgen/tuned")
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", "/y")
    assert default_folder() == Path("/y/tuned")


# --- on a GPU


@pytest.mark.gpu
def test_a_library_is_right_and_remembers_on_a_gpu(tmp_path: Path) -> None:
    """In two processes: the second one times nothing, and captures a graph."""
    code = """
import json, sys, torch, h200_bf16
folder, again = sys.argv[1], sys.argv[2] == "again"
h200_bf16.tune_on_first_use(folder=folder)
a, b = (torch.randn(rows, 1416, device="cuda").bfloat16() for rows in (133, 1160))
timing = sys.modules["h200_bf16.gemmgen_tuning"]
if again:
    timing.timed = None
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        d = h200_bf16.matmul(a, b.T)
    graph.replay()
else:
    d = h200_bf16.matmul(a, b.T)
torch.testing.assert_close(d.float(), a.float() @ b.float().T, rtol=1e-2, atol=1)
print(json.dumps(h200_bf16.choose(133, 1160, 1416, gpu=torch.cuda.get_device_name()).why))
"""
    places = [str(libraries_folder()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}

    def told(word: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path), word]
        return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout

    first = told("first")
    assert "at first use" in first
    assert told("again") == first
    (file,) = tmp_path.iterdir()
    ((key, times),) = json.loads(file.read_text()).items()
    assert key == "144x1160x1416"
    assert len(times) == 3
    assert all(1 < each < 1000 for each in times.values())
