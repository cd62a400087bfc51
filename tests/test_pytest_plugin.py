"""`pytest --gluon-simulate` runs tests that were written for a GPU; without the option it is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kernels.launch import lines_of
from modules import ROOT

pytestmark = pytest.mark.simulator

pytest_plugins = ["pytester"]

COPIES = ROOT / "tests" / "kernels" / "copies.py"
TESTS = """
import pytest
import torch
import triton
from copies import copy_kernel, descriptors, fill, not_gluon, too_much
from triton import OutOfResources


def is_hopper():
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and torch.cuda.get_device_capability()[0] == 9


def copied(awaited):
    source = torch.randn(64, 32, device="cuda")
    target = torch.empty_like(source)
    copy_kernel[lambda meta: (1,)](*descriptors(source, target), 4, awaited, num_warps=4)
    return source, target
"""
RIGHT = """
@pytest.mark.skipif(not is_hopper(), reason="needs a Hopper GPU")
def test_right():
    torch.testing.assert_close(*copied(awaited=True))
"""
RACE = """
def test_race():
    copied(awaited=False)
"""


@pytest.fixture
def simulated(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the kernels, in which pytest finds gemmgen's plugin and no other."""
    pytester.makepyfile(copies=COPIES.read_text(encoding="utf-8"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p gluonsim.pytest_plugin")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    return pytester


SHORT = """
@pytest.mark.parametrize("number", range(5))
def test_short(number):
    source = torch.randn(32, 32, device="cuda")
    copy_kernel[1,](*descriptors(source, torch.empty_like(source)), 2, True, num_warps=4)
"""
REFUSED = """
import torch
from refused import in_a_function


def launched():
    in_a_function[(1,)](torch.zeros(64, device="cuda"))  # its own line


def test_refused():
    launched()
"""
SECTION = "*= gluon-simulate: lints and notes =*"


# A run of pytest imports torch and Triton, for seconds: what goes together is tested in one.


def test_right_kernels_pass_and_wrong_ones_fail_with_their_lines(simulated: pytest.Pytester) -> None:
    """A race, and what Triton refuses, which is told without the way to it.

    A barrier that comes round in one test is covered, in a run of all of them: nothing is noted.
    """
    kernels = ROOT / "tests" / "kernels" / "refused.py"
    simulated.makepyfile(
        test_copies=TESTS + RIGHT + RACE + SHORT,
        test_refused=REFUSED,
        refused=kernels.read_text(encoding="utf-8"),
    )
    ran = simulated.runpytest_subprocess("--gluon-simulate=sm90", "--gluon-sarif=found.sarif")
    ran.assert_outcomes(passed=6, failed=2)
    (line,) = lines_of(COPIES, "tma.async_load(in_desc, [row, 0]")
    (refused,) = lines_of(kernels, "# in a function")
    refusal = "error[[]lowering-failed]: Triton refuses the kernel: *"
    ran.stdout.fnmatch_lines(
        [
            "gluon-simulate: sm_90a, H100 SXM, without a GPU; schedules lazy, random",
            f"*copies.py:{line}: error[[]write-after-read] buffer: *",
            f"*copies.py:{line}: tma.async_load(in_desc, [[]row, 0], ready, buffer)",
            "*launched()",
            "> * # its own line",
            f"E * {simulated.path}/refused.py:{refused}: {refusal}",
            "gluon-simulate: 7 launches, 14 runs of kernels, 1 finding",
            f"FAILED test_copies.py::test_race - write-after-read buffer copies.py:{line}",
        ]
    )
    ran.stdout.no_fnmatch_line(SECTION)
    for own in ("ttgir.py", "pretended.py", "jit.py", "triton_api.py"):
        ran.stdout.no_fnmatch_line(f"*{own}*")
    log = json.loads((simulated.path / "found.sarif").read_text())
    (found,) = log["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "copies.py"}


DEPENDENT = """
import pytest
import torch
from dependent import add_kernel


@pytest.mark.parametrize("launch_pdl", [False, True])
def test_dependent(launch_pdl):
    weight, x = torch.ones(256, device="cuda"), torch.ones(256, device="cuda")
    d = torch.empty_like(x)
    add_kernel[(2,)](weight, x, d, launch_pdl=launch_pdl)
    assert torch.equal(d, weight + x)
"""


def test_lints_and_notes_are_told_once_with_their_tests(simulated: pytest.Pytester) -> None:
    """What comes before the end of the kernel ahead is a lint too, or fails."""
    linted = COPIES.read_text(encoding="utf-8").replace(
        "buffer, ready, tile & 1)", "buffer, ready, tile + 2)"
    )  # parities above 1, of which the lowest bit counts
    kernels = ROOT / "tests" / "kernels" / "dependent.py"
    text = kernels.read_text(encoding="utf-8")
    wait = "    gdc_wait()\n    x = gl.load(x_ptr + offsets)\n"
    assert text.count(wait) == 1
    simulated.makepyfile(
        copies=linted,
        dependent=text,
        without_wait=text.replace(wait, wait.partition("\n")[2]),
        test_a_parity=TESTS + SHORT,
        test_dependent=DEPENDENT,
        test_without_wait=DEPENDENT.replace("from dependent", "from without_wait"),
    )
    ran = simulated.runpytest_subprocess("--gluon-simulate=sm90")
    ran.assert_outcomes(passed=8, failed=1)
    shown = ", ".join(f"test_a_parity.py::test_short[[]{number}]" for number in range(3))
    (line,) = lines_of(COPIES, "mbarrier.wait(ready, phase)")
    (early,) = lines_of(kernels, "weight = gl.load(")
    read = "load reads it although no gdc_wait comes before: the kernel ahead may still write it"
    hint = 'simulate(*, early=("weight_ptr",)) says that it does not'
    ran.stdout.fnmatch_lines(["*: error[[]early-access] d_ptr: store writes it although no gdc_wait comes *"])
    ran.stdout.fnmatch_lines(
        [
            SECTION,
            f"*copies.py:{line}: lint[[]wait-parity] ready: *",
            f"    *copies.py:{line}: mbarrier.wait(ready, phase)",
            f"    in {shown}, and 2 more",
            "note: copy_kernel: faults may hide in barriers with fewer than 3 phases: ready",
            f"    in {shown}, and 2 more",
            "gluon-simulate: 9 launches, 18 runs of kernels, 5 findings",
        ]
    )
    ran.stdout.fnmatch_lines(
        [SECTION, f"*dependent.py:{early}: lint[[]early-access] weight_ptr: {read}; {hint}*"]
    )
    assert ran.stdout.str().count("lint[wait-parity]") == 1


GENERATED = """
import sys

import torch

sys.path.insert(0, {folder!r})
import h100_bf16


def test_a_generated_module():
    a = torch.randn(200, 128, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(300, 128, device="cuda", dtype=torch.bfloat16).T
    for _ in range(2):  # compiled, and found compiled
        d = h100_bf16.matmul(a, b)
        torch.testing.assert_close(d.float(), a.float() @ b.float(), rtol=1e-2, atol=1e-1)
    assert (d.device.type, d.is_cuda) == ("cuda", True)
"""


def test_a_generated_module_runs_with_its_wrapper(simulated: pytest.Pytester) -> None:
    simulated.makepyfile(GENERATED.format(folder=str(ROOT / "generated")))
    ran = simulated.runpytest_subprocess("--gluon-simulate=h200")
    ran.assert_outcomes(passed=1)
    lint = "*lint[[]redundant-store] d_desc: *, and both store the same: both compute * of 8,192 elements"
    ran.stdout.fnmatch_lines([lint, "gluon-simulate: 2 launches, 4 runs of kernels, 1 finding"])


@pytest.mark.parametrize("traceback", ["auto", "native"])
def test_a_test_that_fails_by_itself_says_first_what_the_simulation_found(
    simulated: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, traceback: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # pytest cuts its summary there
    fails = RACE.replace("test_race", "test_wrong") + "    assert 0, 'its own reason'\n"
    simulated.makepyfile(test_copies=TESTS + fails)
    options = ("--gluon-simulate=h100", "--gluon-schedules=lazy", f"--tb={traceback}")
    ran = simulated.runpytest_subprocess(*options)
    ran.assert_outcomes(failed=1)
    (line,) = lines_of(COPIES, "tma.async_load(in_desc, [row, 0]")
    ran.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            "the simulation of a Gluon kernel has findings",
            f"*copies.py:{line}: error[[]write-after-read] buffer: *",
            "The test itself fails too:",
            "*its own reason",
            f"FAILED *::test_wrong - write-after-read buffer copies.py:{line} (AssertionError: its own*)",
        ]
    )
    assert ran.stdout.str().count("error[write-after-read]") == 1


def test_a_launch_may_be_too_long(simulated: pytest.Pytester) -> None:
    simulated.makeconftest("import gluonsim.progress\n\ngluonsim.progress.FIRST_SECONDS = 0.0\n")
    simulated.makepyfile(TESTS + RIGHT)
    ran = simulated.runpytest_subprocess("--gluon-simulate=h100", "--gluon-seconds=0")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["E *error[[]too-long]: the launch takes more than 0 s: copy_kernel: 0 of 1 *"])


ANSWERS = r"""
def test_answers():
    assert torch.cuda.is_available()
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (10, 0)
    assert torch.cuda.get_device_properties("cuda").multi_processor_count == 148
    torch.cuda.synchronize()
    generator = torch.Generator(device="cuda").manual_seed(3)
    on_gpu = torch.rand(4, device=torch.device("cuda", 0), generator=generator)
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.to("cuda").cuda(), torch.as_tensor(on_gpu, device="cuda:0"))
    calls = []
    assert triton.testing.do_bench(lambda: calls.append(1)) > 0
    assert triton.testing.do_bench(lambda: calls.append(1), quantiles=[0.5, 0.2]) == [1.0, 1.0]
    assert calls == [1, 1]
    a, b = torch.full((4, 4096), 1.0, device="cuda").half(), torch.full((4096, 4), 0.5, device="cuda").half()
    assert torch.equal(a @ b, torch.full((4, 4), 2048.0).half())
    a, b = torch.randn(64, 4096).bfloat16(), torch.randn(4096, 64).bfloat16()
    assert torch.equal(a @ b, (a.double() @ b.double()).bfloat16())


def test_triton():
    x, d = torch.arange(200, device="cuda").float(), torch.zeros(2, device="cuda")
    not_gluon[lambda meta: (2,)](x, d, 200, block=128, num_warps=4)
    assert d.equal(torch.stack([2 * x[:128].sum(), 2 * x[128:].sum()]))


def test_code():
    d = torch.zeros(128, device="cuda")
    launched = fill[(1,)](d, block=128, num_warps=4)
    assert "st.global" in launched.asm["ptx"]
    assert launched.metadata.num_warps == 4
    assert fill.warmup(d, block=128, num_warps=4, grid=(1,)).asm["ptx"] == launched.asm["ptx"]


def test_resources():
    d = torch.ones(128, device="cuda")
    with pytest.raises(OutOfResources, match="shared memory, Required: 393"):
        too_much[(1,)](d)
    assert d.equal(torch.ones(128))  # the kernel has not run
"""


def test_torch_and_triton_answer_as_on_the_gpu(simulated: pytest.Pytester) -> None:
    simulated.makepyfile(TESTS + ANSWERS)
    ran = simulated.runpytest_subprocess("--gluon-simulate=sm100")
    ran.assert_outcomes(passed=4)


def test_an_unknown_target_is_wrong_usage(simulated: pytest.Pytester) -> None:
    ran = simulated.runpytest_subprocess("--gluon-simulate=sm80")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*no GPU is called 'sm80'; there are h100, h200, b200*"])


def test_without_the_option_nothing_is_imported(simulated: pytest.Pytester) -> None:
    simulated.makepyfile(
        """
        import sys

        def test_nothing():
            assert not {"torch", "triton", "gluonsim.launch", "gemmgen.triton_api"} & set(sys.modules)
        """
    )
    simulated.runpytest_subprocess().assert_outcomes(passed=1)


FOREIGN = os.environ.get("GEMMGEN_FOREIGN_DIR")


@pytest.mark.skipif(not FOREIGN, reason="GEMMGEN_FOREIGN_DIR names no folder of other people's kernels")
def test_the_small_tests_of_a_tutorial_run_as_they_are(simulated: pytest.Pytester) -> None:
    path = Path(str(FOREIGN)) / "05-wgmma.py"
    ran = simulated.runpytest_subprocess("--gluon-simulate=sm90", "-k", "not 2000", str(path))
    ran.assert_outcomes(passed=24, skipped=4)
