"""Programs that wait for each other through global memory: clean as they are, each planted fault named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.launch import FIXED, changed_kernels, integers, lines_of
from torch import Tensor
from triton.experimental.gluon.language import (  # pyright: ignore[reportMissingTypeStubs]
    NVMMASharedLayout,
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor,
)

from gemmgen import triton_api
from gemmgen.errors import GemmgenError
from gemmgen.processes.forking import forked
from gluonsim import Finding, Kind, Result, Severity, run

pytestmark = pytest.mark.simulator

KERNELS = Path(__file__).parent / "kernels" / "atomics.py"
SCHEDULES = (*FIXED, *["random"] * 5)
MANY = (*FIXED, *["random"] * 40)


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
    ran = case(changed_kernels(KERNELS, tmp_path / "kernels.py"), schedules=MANY)
    assert ran.result.findings == ()
    assert ran.result.deterministic
    assert torch.equal(ran.found, ran.expected)
    assert torch.equal(ran.semaphores, torch.tensor(CASES[case], dtype=torch.int32))


def test_programs_that_wait_for_those_that_begin_later_get_them(tmp_path: Path) -> None:
    module = changed_kernels(KERNELS, tmp_path / "kernels.py")
    ran = relaxation(module, programs=40, schedules=("lazy", "random"))  # more than begin at first
    assert ran.result.findings == ()
    assert torch.equal(ran.found, ran.expected)
    (finding,) = relaxation(module, programs=133, schedules=("lazy",), resident_programs=132).result.findings
    assert finding.kind is Kind.DEADLOCK
    assert "programs 0, 1, 2, 3 and 128 more" in finding.text
    assert "1 more have not begun: the GPU holds 132 at one time" in finding.text


@pytest.mark.parametrize("case", [split_k, stream_k, relaxation])
def test_the_semaphores_are_ready_for_another_launch(case: Case, tmp_path: Path) -> None:
    module = changed_kernels(KERNELS, tmp_path / "kernels.py")
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
    """A snippet of the line that it names first; of a race, one of its two sides."""
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

OPENS = "gl.num_programs(0) - 1:\n        gl.atomic_store"

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
        "7 more have not begun: the GPU holds 1 at one time", resident=1,
    ),
    "grid barrier: more programs than the GPU holds": Fault(
        relaxation, (), Kind.DEADLOCK, "generation_ptr", SPIN,
        "1 more have not begun: the GPU holds 3 at one time", resident=3,
    ),
    "grid barrier: arrivals are relaxed": Fault(
        relaxation, ((ARRIVE, ARRIVE.replace("acq_rel", "relaxed")),), Kind.WEAK_ATOMIC, "x_ptr",
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
    "grid barrier: a store past the caches opens it, which is as plain as any": Fault(
        relaxation,
        (
            (SPIN, "gl.load(generation_ptr, volatile=True) == generation"),
            (OPEN, 'gl.store(generation_ptr, generation + 1, cache_modifier=".wt")'),
        ),
        Kind.GLOBAL_RACE, "generation_ptr", "gl.load(generation_ptr, volatile=True)",
    ),
    "grid barrier: a loop of plain loads, which the compiler drops": Fault(
        relaxation, ((SPIN, "gl.load(generation_ptr) == generation"),), Kind.GLOBAL_RACE, "x_ptr", STORE_X,
    ),
    "grid barrier: one arrival too few opens it": Fault(
        relaxation, ((OPENS, OPENS.replace("- 1", "- 2")),),
        Kind.GLOBAL_RACE, "x_ptr", STORE_X,
    ),
    "grid barrier: it waits for one arrival too many": Fault(
        relaxation, ((OPENS, OPENS.replace(" - 1", "")),),
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
        locked_sum, ((f"    {ADD}\n    {UNLOCK}", f"    {UNLOCK}\n    {ADD}"),), Kind.GLOBAL_RACE,
        "total_ptr", ADD,
    ),
    "lock: it is never given back": Fault(
        locked_sum, ((UNLOCK, "pass"),), Kind.DEADLOCK, "lock_ptr", "gl.atomic_cas(lock_ptr",
        "to change; it is 1",
    ),
    "partitions: no barrier between the stores and the atomic": Fault(
        partitions, (("    mbarrier.wait(stored, 0)\n", ""),), Kind.GLOBAL_RACE, "partial_ptr",
        "total += gl.load(partial_ptr + program",
    ),
    "partitions: the atomic comes before the stores": Fault(
        partitions,
        (("    mbarrier.wait(stored, 0)\n    gl.atomic_add(counter_ptr, 1, sem=\"release\")",
          "    gl.atomic_add(counter_ptr, 1, sem=\"release\")\n    mbarrier.wait(stored, 0)"),),
        Kind.GLOBAL_RACE, "partial_ptr", "total += gl.load(partial_ptr + program",
    ),
    "message: the sender hangs by itself": Fault(
        message, ((AWAIT_SENT, "mbarrier.wait(ready, 0)  # hangs"),), Kind.DEADLOCK, "ready", "# hangs",
    ),
    "message: the TMA store is not awaited": Fault(
        message, ((AWAIT_SENT, "pass"),), Kind.WORK_IN_FLIGHT, "buffer", SEND,
        "without having awaited the TMA store",
    ),
    "message: only the reads of the TMA store are awaited": Fault(
        message, ((AWAIT_SENT, "tma.store_wait(0)"),), Kind.WORK_IN_FLIGHT, "message_ptr", SEND,
        "that takes store_wait with read_only=False",
    ),
}  # fmt: skip


def first_of(fault: Fault, path: Path) -> Finding:
    """Return the first finding of a fault, which names its cause."""
    options = {"schedules": SCHEDULES, "resident_programs": fault.resident}
    findings = fault.case(changed_kernels(KERNELS, path, *fault.changes), **options).result.findings
    assert findings
    # A race has two sides, and which comes second is up to the schedule.
    shown = findings[0].lines[: 2 if fault.kind is Kind.GLOBAL_RACE else 1]
    assert lines_of(path, fault.line.strip()) & set(shown), list(map(str, findings))
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


@pytest.mark.parametrize(
    ("case", "reset"),
    [
        (split_k, '        gl.atomic_store(counter_ptr + tile, 0, sem="relaxed")\n'),
        (stream_k, '                gl.atomic_store(flag_ptr + other, 0, sem="relaxed")\n'),
    ],
)
def test_a_semaphore_that_is_not_reset_shows_in_the_next_launch(
    case: Case, reset: str, tmp_path: Path
) -> None:
    module = changed_kernels(KERNELS, tmp_path / "faulty.py", (reset, ""))
    first = case(module, schedules=SCHEDULES)
    assert first.result.findings == ()
    assert torch.equal(first.found, first.expected)
    assert first.semaphores.any()
    second = case(module, first.semaphores, schedules=SCHEDULES)
    if case is split_k:  # nobody is the last: D is not written
        assert second.found.isnan().all()
    else:
        finding = second.result.findings[0]
        assert (finding.kind, finding.name) == (Kind.GLOBAL_RACE, "partial_ptr")
        assert set(finding.lines) <= lines_of(tmp_path / "faulty.py", "partial_ptr + ")


# --- proxies, scopes and numbers


def test_a_tile_that_two_programs_hand_on_through_tma_lacks_a_proxy_fence(tmp_path: Path) -> None:
    ran = message(changed_kernels(KERNELS, tmp_path / "kernels.py"), read_by_tma=True, schedules=SCHEDULES)
    (finding,) = ran.result.findings
    assert (finding.kind, finding.severity) == (Kind.MISSING_FENCE, Severity.LINT)
    assert torch.equal(ran.found, ran.expected)


def test_a_tma_load_of_what_threads_stored_lacks_a_proxy_fence(tmp_path: Path) -> None:
    stores = "gl.store(message_ptr + offsets, gl.load(x_ptr + offsets))"
    path = tmp_path / "faulty.py"
    module = changed_kernels(KERNELS, path, (SEND, stores), (AWAIT_SENT, "pass"))
    (finding,) = message(module, read_by_tma=True, schedules=SCHEDULES).result.findings
    assert (finding.kind, finding.severity) == (Kind.MISSING_FENCE, Severity.ERROR)
    (loads,), (stored,) = lines_of(path, "tma.async_load(message_desc"), lines_of(path, stores)
    assert finding.lines == (loads, stored)


def test_a_lock_of_the_whole_system_will_do(tmp_path: Path) -> None:
    ran = locked_sum(
        changed_kernels(
            KERNELS, tmp_path / "kernels.py", (LOCK, LOCK.replace('acquire"', 'acquire", scope="sys"'))
        ),
        schedules=SCHEDULES,
    )
    assert ran.result.findings == ()
    assert torch.equal(ran.found, ran.expected)


def test_a_counter_may_be_reset_by_a_plain_store_of_the_last(tmp_path: Path) -> None:
    reset = 'gl.atomic_store(counter_ptr + tile, 0, sem="relaxed")'
    ran = split_k(
        changed_kernels(KERNELS, tmp_path / "k.py", (reset, "gl.store(counter_ptr + tile, 0)")),
        schedules=MANY,
    )
    assert ran.result.findings == ()
    assert torch.equal(ran.found, ran.expected)


def test_a_relaxed_atomic_hands_on_what_another_released(tmp_path: Path) -> None:
    # A read-modify-write does not break the chain from a release to an acquire [ptx].
    counted = ARRIVE.replace("arrived = ", "").replace(", 1,", ", 0,").replace("acq_rel", "relaxed")
    ran = relaxation(
        changed_kernels(KERNELS, tmp_path / "k.py", (ARRIVE, f"{ARRIVE}\n    {counted}")), schedules=MANY
    )
    assert ran.result.findings == ()
    assert torch.equal(ran.found, ran.expected)


def test_a_loop_that_counts_its_tries_lets_others_go_on(tmp_path: Path) -> None:
    spin = f"    while {LOCK} == 1:\n        pass\n"
    counting = f"    tries = 1\n    while {LOCK} * tries > 0:\n        tries += 1\n"
    ran = locked_sum(changed_kernels(KERNELS, tmp_path / "k.py", (spin, counting)), schedules=MANY)
    assert ran.result.findings == ()
    assert torch.equal(ran.found, ran.expected)


def test_read_modify_writes_compute_what_the_device_does(tmp_path: Path) -> None:
    x, y, old = integers(1029), integers(384).float(), torch.zeros(384, dtype=torch.int32)
    before, floats, o = x.clone(), y.clone(), torch.arange(128, dtype=torch.int32)
    module = changed_kernels(KERNELS, tmp_path / "kernels.py")
    result = run(module.arithmetic_kernel, (1,), (x, y, old), schedules=("lazy",))
    assert result.findings == ()
    parts = before[:1024].view(8, 128)
    cas = torch.where(parts[7] == o % 3, o + 1000, parts[7])
    added = torch.where(o < 100, parts[0] + o - 50, parts[0])
    expected = [
        added, torch.maximum(parts[1], o - 64), torch.minimum(parts[2], o - 64), parts[3] & o, parts[4] | o,
        parts[5] ^ o, o, cas,
    ]  # fmt: skip
    assert torch.equal(x[:1024].view(8, 128), torch.stack(expected))
    assert torch.equal(x[1024:] - before[1024:], torch.tensor([26, 26, 26, 25, 25]))
    assert torch.equal(old, torch.cat((torch.where(o < 100, parts[0], 0), parts[6], parts[7])))
    whole = floats.view(3, 128)
    expected = [whole[0] + 0.5, torch.maximum(whole[1], o - 64.0), torch.minimum(whole[2], o - 64.0)]
    assert torch.equal(y.view(3, 128), torch.stack(expected))


def test_a_poll_with_a_timeout_is_refused(tmp_path: Path) -> None:
    timed = POLL_FLAG.replace('"acquire"', '"acquire", timeout_ns=100')
    with pytest.raises(GemmgenError, match="polls with a timeout are not known to the simulator"):
        stream_k(changed_kernels(KERNELS, tmp_path / "k.py", (POLL_FLAG, timed)), schedules=("lazy",))


def test_programs_hold_at_least_one_place(tmp_path: Path) -> None:
    with pytest.raises(GemmgenError, match="resident_programs is 0: it must be positive"):
        locked_sum(changed_kernels(KERNELS, tmp_path / "k.py"), resident_programs=0)


@pytest.mark.parametrize(
    ("order", "before", "after"),
    [("relaxed", 0, 0), ("release", 1, 0), ("acquire", 0, 1), ("acq_rel", 1, 1)],
)
def test_the_compiler_has_all_warps_wait_before_a_release_and_after_an_acquire(
    order: str, before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is right that the warps of a partition run as one here: a kernel needs no barrier of its own.
    monkeypatch.setenv(triton_api.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernel = changed_kernels(
        KERNELS, tmp_path / f"{order}.py", ('1, sem="release")  #', f'1, sem="{order}")  #')
    ).announce_kernel
    types = {"x_ptr": "*i32", "flag_ptr": "*i32"}
    with forked(lambda: triton_api.compile_kernel(kernel, types, 90, {"num_warps": 4}).stages["ptx"]) as ptx:
        found = re.findall(r"bar\.sync|st\.global|atom\.global|red\.global", ptx().decode())
    (atomic,) = (place for place, what in enumerate(found) if what in ("atom.global", "red.global"))
    assert found[:atomic] == ["st.global", *["bar.sync"] * before]
    assert found[atomic + 1 :] == [*["bar.sync"] * after, "st.global"]
