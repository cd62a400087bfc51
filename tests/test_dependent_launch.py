"""Programmatic dependent launch: what a kernel does before the kernel ahead of it has ended is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.launch import FIXED, changed_kernels, integers, lines_of
from triton.experimental.gluon.language import (  # pyright: ignore[reportMissingTypeStubs]
    NVMMASharedLayout,
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor,
)

from gemmgen.errors import GemmgenError
from gluonsim import Kind, Result, Severity, run, simulate

KERNELS = Path(__file__).parent / "kernels" / "dependent.py"
SCHEDULES = (*FIXED, *["random"] * 10)


Case = Callable[..., Result]


def add(module: Any, **options: Any) -> Result:
    """Two programs."""
    weight, x, d = integers(256), integers(256) * 10, torch.zeros(256, dtype=torch.int32)
    result = run(module.add_kernel, (2,), (weight, x, d), schedules=SCHEDULES, **options)
    assert d.equal(weight + x)
    return result


def add_by_tma(module: Any, **options: Any) -> Result:
    """Two programs of a tile."""
    weight, x = integers(128, 64).half(), integers(128, 64).half() * 10
    d = torch.zeros_like(x)
    layout: Any = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    tiles = [TensorDescriptor.from_tensor(tensor, [64, 64], layout) for tensor in (weight, x, d)]
    result = run(module.add_by_tma_kernel, (2,), tiles, schedules=SCHEDULES, **options)
    assert d.equal(weight + x)
    return result


def partitions(module: Any, **options: Any) -> Result:
    """Two programs of three partitions: one copies, another waits for the kernel ahead."""
    x, d = integers(256), torch.zeros(256, dtype=torch.int32)
    result = run(module.partitions_kernel, (2,), (x, d), schedules=SCHEDULES, **options)
    assert d.equal(x)
    return result


def message(module: Any, **options: Any) -> Result:
    """A program that waits for the kernel ahead, and one that copies."""
    x, d, flag = integers(128), torch.zeros(128, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    result = run(module.message_kernel, (2,), (x, d, flag), schedules=SCHEDULES, **options)
    assert d.equal(x)
    return result


@dataclass(frozen=True)
class Early:
    """An access that comes too early."""

    what: str
    """The access and its verb."""
    name: str
    line: str
    """A snippet of its line."""
    severity: Severity = Severity.ERROR
    waits: int = 1
    """Lines of the kernel with gdc_wait, which are told too."""

    @property
    def text(self) -> str:
        """All that is said of it."""
        other = "read or write" if self.what.endswith("writes") else "write"
        text = f"{self.what} it although no gdc_wait comes before: the kernel ahead may still {other} it"
        if self.severity is Severity.LINT:
            text += f'; simulate(…, early=("{self.name}",)) says that it does not'
        return text


@dataclass(frozen=True)
class Launch:
    """What is launched, and all that must be found."""

    case: Case
    changes: tuple[tuple[str, str], ...] = ()
    early: Sequence[str] | None = None
    found: tuple[Early, ...] = ()


WAIT, ALLOW = "    gdc_wait()\n", "    gdc_launch_dependents()\n"
READ_WEIGHT, READ_X, STORE = (
    "    weight = gl.load(weight_ptr + offsets)\n",
    "    x = gl.load(x_ptr + offsets)\n",
    "    gl.store(d_ptr + offsets, weight + x)\n",
)
ADD = READ_WEIGHT + WAIT + READ_X + ALLOW + STORE
LOAD_X = "    tma.async_load(x_desc, [row, 0], ready, x)\n"
TMA_STORE = "    tma.async_store(d_desc, [row, 0], x)\n    tma.store_wait(0)\n"
COPIER_WAIT = "    mbarrier.wait(ahead, 0)\n"
TELL = "    mbarrier.arrive(ahead)\n"
WAIT_AND_SEND = '        gdc_wait()\n        gl.atomic_store(flag_ptr, 1, sem="release")\n'
LINT = Severity.LINT


def weight(severity: Severity = Severity.ERROR, waits: int = 1) -> Early:
    return Early("load reads", "weight_ptr", READ_WEIGHT, severity, waits)


def x(severity: Severity = Severity.ERROR, waits: int = 1) -> Early:
    return Early("load reads", "x_ptr", READ_X, severity, waits)


def d(waits: int = 1) -> Early:
    return Early("store writes", "d_ptr", STORE, waits=waits)


COPIES = (
    Early("load reads", "x_ptr", "copied = gl.load("),
    Early("store writes", "d_ptr", "gl.store(d_ptr + offsets, copied)"),
)
RECEIVES = (
    Early("load reads", "x_ptr", "received = gl.load("),
    Early("store writes", "d_ptr", "gl.store(d_ptr + offsets, received)"),
)
POLL = Early("atomic poll reads", "flag_ptr", "gl.atomic_poll(")

LAUNCHES = {
    "what is declared is read early": Launch(add, early=("weight_ptr",)),
    "nothing is declared": Launch(add, found=(weight(LINT),)),
    "nothing may be early": Launch(add, early=(), found=(weight(),)),
    "what is not declared is read early": Launch(
        add, ((ADD, READ_WEIGHT + READ_X + WAIT + ALLOW + STORE),), ("weight_ptr",), (x(),)
    ),
    "all is read early": Launch(
        add, ((ADD, READ_WEIGHT + READ_X + WAIT + ALLOW + STORE),), None, (weight(LINT), x(LINT))
    ),
    "a write comes early": Launch(
        add, ((ADD, READ_WEIGHT + READ_X + STORE + WAIT),), ("weight_ptr", "x_ptr", "d_ptr"), (d(),)
    ),
    "there is no wait": Launch(
        add, ((ADD, ADD.replace(WAIT, "")),), ("weight_ptr",), (x(waits=0), d(waits=0))
    ),
    "there is no wait, and nothing is declared": Launch(
        add, ((ADD, ADD.replace(WAIT, "")),), None, (d(waits=0), weight(LINT, 0), x(LINT, 0))
    ),
    "the next kernel may start before the wait": Launch(
        add, ((ADD, ALLOW + ADD.replace(ALLOW, "")),), ("weight_ptr",)
    ),
    "TMA loads what is declared": Launch(add_by_tma, early=("weight_desc",)),
    "TMA loads early, and nothing is declared": Launch(
        add_by_tma, found=(Early("TMA load reads", "weight_desc", "tma.async_load(weight_desc", LINT),)
    ),
    "TMA loads what is not declared": Launch(
        add_by_tma,
        ((WAIT + LOAD_X, LOAD_X + WAIT),),
        ("weight_desc",),
        (Early("TMA load reads", "x_desc", LOAD_X),),
    ),
    "TMA stores early": Launch(
        add_by_tma,
        ((WAIT + LOAD_X, LOAD_X), (TMA_STORE, TMA_STORE + WAIT)),
        ("weight_desc", "x_desc"),
        (Early("TMA store writes", "d_desc", "tma.async_store("),),
    ),
    "the wait of one partition is told to another": Launch(partitions, early=()),
    "another partition does not listen": Launch(partitions, ((COPIER_WAIT, ""),), (), COPIES),
    "another partition is told before the wait": Launch(
        partitions, ((WAIT + TELL, TELL + WAIT),), (), COPIES
    ),
    "the wait of one program is told to another": Launch(message, early=("flag_ptr",)),
    "a poll comes early": Launch(message, early=(), found=(POLL,)),
    "another program is told relaxed": Launch(
        message, (('sem="release"', 'sem="relaxed"'),), ("flag_ptr",), RECEIVES
    ),
    "another program is told before the wait": Launch(
        message,
        ((WAIT_AND_SEND, "".join(WAIT_AND_SEND.splitlines(keepends=True)[::-1])),),
        ("flag_ptr",),
        (Early("atomic store writes", "flag_ptr", "gl.atomic_store("), *RECEIVES),
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_all_that_comes_too_early_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    launch, path = LAUNCHES[name], tmp_path / "kernels.py"
    result = launch.case(changed_kernels(KERNELS, path, *launch.changes), early=launch.early, launch_pdl=True)
    lines = ["", *path.read_text(encoding="utf-8").splitlines()]
    found: dict[Any, tuple[int, ...]] = {
        (finding.kind, finding.severity, finding.name, finding.line, finding.text): finding.lines[1:]
        for finding in result.findings
    }
    wanted: dict[Any, Early] = {
        (
            Kind.EARLY_ACCESS,
            early.severity,
            early.name,
            *lines_of(path, early.line.strip()),
            early.text,
        ): early
        for early in launch.found
    }
    assert found.keys() == wanted.keys()
    for key, waits in found.items():
        assert [lines[line].strip() for line in waits] == ["gdc_wait()"] * wanted[key].waits


@pytest.mark.parametrize("options", [{}, {"launch_pdl": False}])
def test_a_launch_that_begins_when_the_kernel_ahead_has_ended_needs_no_wait(
    options: dict[str, bool], tmp_path: Path
) -> None:
    for name, changes in (("with", ()), ("without", ((ADD, ADD.replace(WAIT, "")),))):
        module = changed_kernels(KERNELS, tmp_path / f"{name}.py", *changes)
        assert add(module, early=(), **options).findings == ()


def test_simulate_takes_what_may_be_read_early(tmp_path: Path) -> None:
    kernel = changed_kernels(KERNELS, tmp_path / "kernels.py").add_kernel
    args = (integers(256), integers(256), torch.zeros(256, dtype=torch.int32))
    assert simulate(kernel, early=("weight_ptr",))[2,](*args, launch_pdl=True).findings == ()
    (finding,) = simulate(kernel)[2,](*args, launch_pdl=True).findings
    assert (finding.kind, finding.severity) == (Kind.EARLY_ACCESS, Severity.LINT)
    assert simulate(kernel)[2,](*args).findings == ()


# --- what a launch must leave as it finds it

RESET = "        gl.store(counter_ptr + 1, 0)\n"


def count(module: Any, **options: Any) -> Result:
    """Four programs, and a counter within a larger tensor."""
    counters, last = torch.zeros(8, dtype=torch.int32)[2:5], torch.zeros(1, dtype=torch.int32)
    return run(module.count_kernel, (4,), (counters, last), schedules=SCHEDULES, **options)


def test_a_counter_that_the_last_program_resets_is_as_it_was_found(tmp_path: Path) -> None:
    module = changed_kernels(KERNELS, tmp_path / "kernels.py")
    assert count(module, restored=("counter_ptr",)).findings == ()
    (finding,) = count(module, restored=("last_ptr",)).findings
    assert (finding.kind, finding.name) == (Kind.WORKSPACE_NOT_RESTORED, "last_ptr")


@pytest.mark.parametrize(
    ("reset", "writer", "left"),
    [("", "gl.atomic_add(", 4), (RESET.replace(", 0)", ", 1)"), "gl.store(counter_ptr", 1)],
)
def test_a_counter_that_is_left_changed_is_named_with_who_wrote_it(
    reset: str, writer: str, left: int, tmp_path: Path
) -> None:
    path = tmp_path / "kernels.py"
    module = changed_kernels(KERNELS, path, (RESET, reset))
    assert count(module).findings == ()
    (finding,) = count(module, restored=("counter_ptr",)).findings
    assert (finding.kind, finding.severity) == (Kind.WORKSPACE_NOT_RESTORED, Severity.ERROR)
    assert {finding.line} == lines_of(path, writer)
    told = "1 of 3 elements are not left as they were found, the first at [1]"
    assert (finding.name, finding.text) == ("counter_ptr", f"{told}: {left}, not 0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"early": "counter_ptr"}, "early is 'counter_ptr': it must be a sequence of names"),
        ({"early": ("counters",)}, "early names 'counters', which is no tensor of the launch"),
        ({"restored": "last_ptr"}, "restored is 'last_ptr': it must be a sequence of names"),
        ({"restored": ("last",)}, "restored names 'last', which is no tensor of the launch"),
    ],
)
def test_what_names_no_tensor_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(GemmgenError, match=said):
        count(changed_kernels(KERNELS, tmp_path / "kernels.py"), **options)
