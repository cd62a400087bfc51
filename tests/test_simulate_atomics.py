"""Programs that wait for each other through global memory: clean as they are, each planted fault named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kernels.launch import FIXED, lines_of
from torch import Tensor
from triton.experimental.gluon.language import (  # pyright: ignore[reportMissingTypeStubs]
    NVMMASharedLayout,
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor,
)

from gemmgen.errors import GemmgenError
from gemmgen.simulate import Finding, Kind, Result, Severity, run
from gemmgen.simulate.execution import exchanges
from gemmgen.simulate.parse import Block, Operation

KERNELS = Path(__file__).parent / "kernels" / "atomics.py"
SCHEDULES = (*FIXED, *["random"] * 5)
MANY = (*FIXED, *["random"] * 60)


def imported(path: Path, *changes: tuple[str, str]) -> ModuleType:
    """Return the kernels of this file with some changes, as a module at a path."""
    text = KERNELS.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{text.count(old)} times {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def integers(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1), dtype=torch.int32)


def tile_of(tensor: Tensor) -> Any:
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(tensor, [64, 64], layout)


@dataclass
class Ran:
    """What a launch showed, what it made and should have made, and the semaphores that it left."""

    result: Result
    found: Tensor
    expected: Tensor
    semaphores: Tensor


Case = Callable[..., Ran]


def split_k(module: Any, semaphores: Tensor | None = None, **options: Any) -> Ran:
    """Two tiles, each by four programs."""
    a, b = integers(128, 512).half(), integers(512, 64).half()
    d = torch.full((128, 64), float("nan"), dtype=torch.float16)
    partial = torch.full((2 * 4 * 64 * 64,), float("nan"))
    counter = torch.zeros(2, dtype=torch.int32) if semaphores is None else semaphores
    args = (tile_of(a), tile_of(b), d, partial, counter, 64, 2)
    result = run(module.split_k_kernel, (2, 4), args, **options)
    return Ran(result, d, (a.float() @ b.float()).half(), counter)


def stream_k(module: Any, semaphores: Tensor | None = None, **options: Any) -> Ran:
    """Three tiles of eight steps by eight programs of three steps."""
    a, b = integers(192, 512).half(), integers(512, 64).half()
    d = torch.full((192, 64), float("nan"), dtype=torch.float16)
    partial = torch.full((8 * 64 * 64,), float("nan"))
    flags = torch.zeros(8, dtype=torch.int32) if semaphores is None else semaphores
    args = (tile_of(a), tile_of(b), d, partial, flags, 64, 8, 3)
    result = run(module.stream_k_kernel, (8,), args, **options)
    return Ran(result, d, (a.float() @ b.float()).half(), flags)


def relaxation(module: Any, semaphores: Tensor | None = None, *, programs: int = 4, **options: Any) -> Ran:
    """Three rounds, with two grid barriers each."""
    x = integers(programs, 128)
    expected = x
    for _ in range(3):
        expected = expected.roll(1, 0) + expected.roll(-1, 0)
    words = torch.zeros(2, dtype=torch.int32) if semaphores is None else semaphores
    arrivals, generation = words[:1].clone(), words[1:].clone()
    args = (x, torch.zeros_like(x), arrivals, generation, 3)
    result = run(module.relaxation_kernel, (programs,), args, **options)
    return Ran(result, x, expected, torch.cat((arrivals, generation)))


def locked_sum(module: Any, **options: Any) -> Ran:
    """Six programs, one lock."""
    x, total, lock = integers(6, 128), torch.zeros(128, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    result = run(module.locked_sum_kernel, (6,), (x, total, lock), **options)
    return Ran(result, total, x.sum(0, dtype=torch.int32), lock)


def partitions(module: Any, **options: Any) -> Ran:
    """Six programs of two partitions."""
    x, total = integers(6, 128), torch.zeros(128, dtype=torch.int32)
    counter = torch.zeros(1, dtype=torch.int32)
    args = (x, torch.zeros_like(x), total, counter)
    result = run(module.partitions_kernel, (6,), args, **options)
    return Ran(result, total, x.sum(0, dtype=torch.int32), counter)


def message(module: Any, *, read_by_tma: bool = False, **options: Any) -> Ran:
    """A tile from one program to another."""
    x = integers(64, 64).half()
    sent, out, flag = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(1, dtype=torch.int32)
    result = run(module.message_kernel, (2,), (x, tile_of(sent), sent, out, flag, read_by_tma), **options)
    return Ran(result, out, x, flag)


def cluster_counter(module: Any, **options: Any) -> Ran:
    """Three clusters of two CTAs."""
    x, out = torch.zeros(3, 256, dtype=torch.int32), torch.zeros(3, 256, dtype=torch.int32)
    counter = torch.zeros(1, dtype=torch.int32)
    result = run(module.cluster_counter_kernel, (3,), (x, out, counter), num_ctas=2, **options)
    return Ran(result, out, torch.arange(3).unsqueeze(1) + torch.arange(256, dtype=torch.int32), counter)


CASES: dict[Case, list[int]] = {
    split_k: [0, 0],
    stream_k: [0] * 8,
    relaxation: [0, 6],
    locked_sum: [0],
    partitions: [6],
    message: [1],
    cluster_counter: [3],
}


@pytest.mark.parametrize("case", CASES)
def test_what_waits_rightly_is_clean_and_exact_under_many_schedules(case: Case, tmp_path: Path) -> None:
    ran = case(imported(tmp_path / "kernels.py"), schedules=MANY)
    assert ran.result.findings == ()
    assert ran.result.deterministic
    assert torch.equal(ran.found, ran.expected)
    assert ran.semaphores.tolist() == CASES[case]


@pytest.mark.parametrize("case", [split_k, stream_k, relaxation])
def test_the_semaphores_are_ready_for_another_launch(case: Case, tmp_path: Path) -> None:
    module = imported(tmp_path / "kernels.py")
    first = case(module, schedules=("random",))
    second = case(module, first.semaphores, schedules=SCHEDULES)
    assert second.result.findings == ()
    assert torch.equal(second.found, second.expected)


# --- planted faults


@dataclass(frozen=True)
class Fault:
    """What is changed in the kernels, and what must be the first finding."""

    case: Case
    changes: tuple[tuple[str, str], ...]
    kind: Kind
    name: str
    line: str
    """A snippet of the line that it names first."""
    text: str = ""
    """What it must say."""
    resident: int | None = None


COUNT = 'arrived = gl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu")'
STORE_PARTIAL = "    gl.store(parts_ptr + part * block_m * block_n, total)\n"
LOAD_PARTIAL = "total += gl.load(parts_ptr + other"
SET_FLAG = 'gl.atomic_store(flag_ptr + program, 1, sem="release")'
POLL_FLAG = 'gl.atomic_poll(flag_ptr + other, 1, sem="acquire")'
LOAD_STREAMED = "total += gl.load(partial_ptr + other * block_m"
ARRIVE = 'arrived = gl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu")'
OPEN = 'gl.atomic_add(generation_ptr, 1, sem="release")'
SPIN = 'gl.atomic_load(generation_ptr, sem="acquire") == generation'
RESET = '        gl.atomic_store(arrivals_ptr, 0, sem="relaxed")\n'
STORE_X = "        gl.store(x_ptr + program * 128 + offsets, gl.load(y_ptr"
BARRIER = "        grid_barrier(arrivals_ptr, generation_ptr)\n"
STORE_Y = "        gl.store(y_ptr + program * 128 + offsets, total)\n"
LOCK = 'gl.atomic_cas(lock_ptr, 0, 1, sem="acquire")'
UNLOCK = 'gl.atomic_xchg(lock_ptr, 0, sem="release")'
ADD = "gl.store(total_ptr + offsets, gl.load(total_ptr + offsets) + x)"
SEND = "tma.async_store(message_desc, [0, 0], buffer)"
AWAIT_SENT = "tma.store_wait(0, read_only=False)"

FAULTS = {
    "split K: the counter is relaxed": Fault(
        split_k, ((COUNT, COUNT.replace("acq_rel", "relaxed")),), Kind.WEAK_ATOMIC, "partial_ptr",
        "arrived = gl.atomic_add(counter_ptr", "is relaxed, and releases nothing",
    ),
    "split K: the counter only releases": Fault(
        split_k, ((COUNT, COUNT.replace("acq_rel", "release")),), Kind.WEAK_ATOMIC, "partial_ptr",
        "arrived = gl.atomic_add(counter_ptr", "is release, and acquires nothing",
    ),
    "split K: the counter only acquires": Fault(
        split_k, ((COUNT, COUNT.replace("acq_rel", "acquire")),), Kind.WEAK_ATOMIC, "partial_ptr",
        "arrived = gl.atomic_add(counter_ptr", "is acquire, and releases nothing",
    ),
    "split K: the counter has the scope of a CTA": Fault(
        split_k, ((COUNT, COUNT.replace('"gpu"', '"cta"')),), Kind.WEAK_ATOMIC, "counter_ptr",
        "arrived = gl.atomic_add(counter_ptr", "is its own CTA",
    ),
    "split K: the last but one adds up": Fault(
        split_k, (("arrived == parts - 1", "arrived == parts - 2"),), Kind.GLOBAL_RACE, "partial_ptr",
        LOAD_PARTIAL,
    ),
    "split K: a part is announced before it is stored": Fault(
        split_k, ((STORE_PARTIAL, ""), (f"    {COUNT}\n", f"    {COUNT}\n{STORE_PARTIAL}")),
        Kind.GLOBAL_RACE, "partial_ptr", LOAD_PARTIAL,
    ),
    "split K: all parts go to one place": Fault(
        split_k, ((STORE_PARTIAL, STORE_PARTIAL.replace("part *", "0 *")),), Kind.GLOBAL_RACE, "partial_ptr",
        "gl.store(parts_ptr + 0",
    ),
    "split K: the counter is no atomic": Fault(
        split_k,
        ((COUNT, "arrived = gl.load(counter_ptr + tile)\n    gl.store(counter_ptr + tile, arrived + 1)"),),
        Kind.GLOBAL_RACE, "counter_ptr", "gl.store(counter_ptr + tile",
    ),
    "stream-K: the poll is relaxed": Fault(
        stream_k, ((POLL_FLAG, POLL_FLAG.replace("acquire", "relaxed")),), Kind.WEAK_ATOMIC, "partial_ptr",
        "gl.atomic_poll(flag_ptr + other", "is relaxed, and acquires nothing",
    ),
    "stream-K: the flag is set relaxed": Fault(
        stream_k, ((SET_FLAG, SET_FLAG.replace("release", "relaxed")),), Kind.WEAK_ATOMIC, "partial_ptr",
        "gl.atomic_store(flag_ptr + program", "is relaxed, and releases nothing",
    ),
    "stream-K: the flag is set by a plain store": Fault(
        stream_k, ((SET_FLAG, "gl.store(flag_ptr + program, 1)"),), Kind.GLOBAL_RACE, "flag_ptr",
        "gl.atomic_poll(flag_ptr + other",
    ),
    "stream-K: the flag is not awaited": Fault(
        stream_k, ((POLL_FLAG, "pass"),), Kind.GLOBAL_RACE, "partial_ptr", "gl.store(partial_ptr + program",
    ),
    "stream-K: the flag is never set": Fault(
        stream_k, ((SET_FLAG, "pass"),), Kind.DEADLOCK, "flag_ptr", "gl.atomic_poll(flag_ptr + other",
        "to be 1; it is 0",
    ),
    "stream-K: more programs than the GPU holds": Fault(
        stream_k, (), Kind.DEADLOCK, "flag_ptr", "gl.atomic_poll(flag_ptr + other",
        "6 more have not begun: the GPU holds 1 at one time", resident=1,
    ),
    "grid barrier: more programs than the GPU holds": Fault(
        relaxation, (), Kind.DEADLOCK, "generation_ptr", SPIN,
        "1 more have not begun: the GPU holds 3 at one time", resident=3,
    ),
    "grid barrier: arrivals are relaxed": Fault(
        relaxation, ((ARRIVE, ARRIVE.replace("acq_rel", "relaxed")),), Kind.WEAK_ATOMIC, "y_ptr",
        "arrived = gl.atomic_add(arrivals_ptr", "is relaxed, and releases nothing",
    ),
    "grid barrier: it is opened relaxed": Fault(
        relaxation, ((OPEN, OPEN.replace("release", "relaxed")),), Kind.WEAK_ATOMIC, "x_ptr",
        "gl.atomic_add(generation_ptr", "is relaxed, and releases nothing",
    ),
    "grid barrier: a volatile load sees it open": Fault(
        relaxation, ((SPIN, "gl.load(generation_ptr, volatile=True) == generation"),), Kind.WEAK_ATOMIC,
        "x_ptr", "gl.load(generation_ptr, volatile=True)", "is relaxed, and acquires nothing",
    ),
    "grid barrier: a plain load sees it open": Fault(
        relaxation, ((SPIN, "gl.load(generation_ptr) == generation"),), Kind.GLOBAL_RACE,
        "generation_ptr", "gl.atomic_add(generation_ptr",
    ),
    "grid barrier: one arrival too few opens it": Fault(
        relaxation, (("gl.num_programs(0) - 1:\n        gl.atomic_store", "gl.num_programs(0) - 2:\n        gl.atomic_store"),),
        Kind.GLOBAL_RACE, "x_ptr", STORE_X,
    ),
    "grid barrier: it waits for one arrival too many": Fault(
        relaxation, (("gl.num_programs(0) - 1:\n        gl.atomic_store", "gl.num_programs(0):\n        gl.atomic_store"),),
        Kind.DEADLOCK, "generation_ptr", SPIN, "to change; it is 0",
    ),
    "grid barrier: arrivals are not reset": Fault(
        relaxation, ((RESET, ""),), Kind.DEADLOCK, "generation_ptr", SPIN, "to change; it is 1",
    ),
    "grid barrier: arrivals are reset after it is open": Fault(
        relaxation, ((f"{RESET}        {OPEN}\n", f"        {OPEN}\n{RESET}"),),
        Kind.DEADLOCK, "generation_ptr", SPIN,
    ),
    "grid barrier: none between reading and writing": Fault(
        relaxation, ((STORE_Y + BARRIER, STORE_Y),), Kind.GLOBAL_RACE, "x_ptr", STORE_X,
    ),
    "lock: it is taken relaxed": Fault(
        locked_sum, ((LOCK, LOCK.replace("acquire", "relaxed")),), Kind.WEAK_ATOMIC, "total_ptr",
        "gl.atomic_cas(lock_ptr", "is relaxed, and acquires nothing",
    ),
    "lock: it is given back relaxed": Fault(
        locked_sum, ((UNLOCK, UNLOCK.replace("release", "relaxed")),), Kind.WEAK_ATOMIC, "total_ptr",
        "gl.atomic_xchg(lock_ptr", "is relaxed, and releases nothing",
    ),
    "lock: it has the scope of a CTA": Fault(
        locked_sum, ((LOCK, LOCK.replace("acquire\"", 'acquire", scope="cta"')),), Kind.WEAK_ATOMIC,
        "lock_ptr", "gl.atomic_cas(lock_ptr", "is its own CTA",
    ),
    "lock: it is given back too early": Fault(
        locked_sum, ((f"    {ADD}\n    {UNLOCK}", f"    {UNLOCK}\n    {ADD}"),), Kind.GLOBAL_RACE, "total_ptr",
        ADD,
    ),
    "lock: it is never given back": Fault(
        locked_sum, ((UNLOCK, "pass"),), Kind.DEADLOCK, "lock_ptr", "gl.atomic_cas(lock_ptr",
        "to change; it is 1",
    ),
    "partitions: no barrier between the stores and the atomic": Fault(
        partitions, (("    mbarrier.wait(stored, 0)\n", ""),), Kind.GLOBAL_RACE, "partial_ptr",
        "total += gl.load(partial_ptr + program",
    ),
    "message: only the reads of the TMA store are awaited": Fault(
        message, ((AWAIT_SENT, "tma.store_wait(0)"),), Kind.WORK_IN_FLIGHT, "message_desc", SEND,
        "that takes store_wait with read_only=False",
    ),
}  # fmt: skip


def first_of(fault: Fault, path: Path) -> Finding:
    """Return the first finding of a fault, which names its cause."""
    options = {"schedules": SCHEDULES, "resident_programs": fault.resident}
    findings = fault.case(imported(path, *fault.changes), **options).result.findings
    assert findings
    assert findings[0].lines[0] in lines_of(path, fault.line.strip()), list(map(str, findings))
    if fault.kind is Kind.DEADLOCK:
        assert len(findings) == 1, list(map(str, findings))
    return findings[0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_first(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    finding = first_of(fault, tmp_path / "faulty.py")
    assert (finding.kind, finding.name) == (fault.kind, fault.name), str(finding)
    assert finding.severity is Severity.ERROR
    assert fault.text in finding.text
