"""Faults of programs and CTAs that hand parts to each other, and of kernels that begin early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gluonsim import Kind, Result, simulate
from mutants.committed import changed_within as edited
from mutants.handwritten import faults_of
from mutants.pages import described
from mutants.registers import random

K = Kind


def turns(module: Any, schedules: Sequence[str]) -> Result:
    """Two tiles of four parts."""
    x, turn = random(2, 4, 128), torch.zeros(2).int()
    launched = simulate(
        module.turns_kernel, schedules=schedules, expect={"d_ptr": x.sum(1)}, restored=("turns_ptr",)
    )
    return launched[8](x, torch.full((2, 128), float("nan")), torch.zeros(2, 128), turn, 4)


def exchange(module: Any, schedules: Sequence[str]) -> Result:
    """Three rounds of a tile."""
    x = random(3, 64, 64)
    launched = simulate(module.exchange_kernel, schedules=schedules, expect={"d_ptr": x})
    return launched[1](x, torch.zeros(3, 64, 64), 3, num_ctas=2)


def sent(module: Any, schedules: Sequence[str]) -> Result:
    """Three rounds of a tile."""
    x = random(3, 64, 64)
    launched = simulate(module.sent_kernel, schedules=schedules, expect={"d_ptr": x})
    return launched[1](x, torch.zeros(3, 64, 64), 3, num_ctas=2)


def multicast(module: Any, schedules: Sequence[str]) -> Result:
    """Seven tiles through two slots, by two pairs of CTAs."""
    x = random(7, 128, 64)
    launched = simulate(module.multicast_kernel, schedules=schedules, expect={"d_ptr": x.sum(0)})
    tile = described(x.view(896, 64), [128, 64], [0, 0], [1, 0])
    return launched[1](tile, torch.zeros(128, 64), 7, num_ctas=4)


def dependent(module: Any, schedules: Sequence[str]) -> Result:
    """Two programs that may begin before the kernel ahead has ended."""
    weight, x, d = random(128, 64), random(128, 64) * 2, torch.zeros(128, 64)
    launched = simulate(
        module.dependent_kernel, schedules=schedules, expect={"d_desc": weight + x}, early=("weight_ptr",)
    )
    tiles = described(x, [64, 64]), described(d, [64, 64])
    return launched[2](weight, *tiles, torch.zeros(1).int(), launch_pdl=True)


LAUNCHES = {
    "turns": turns,
    "exchange": exchange,
    "sent": sent,
    "multicast": multicast,
    "dependent": dependent,
}
turn, swap, send, share, early = (
    faults_of("workspaces", f"{name}_kernel", launch) for name, launch in LAUNCHES.items()
)
loads, reads = (faults_of("workspaces", f"_shared_{role}", multicast) for role in ("loads", "reads"))
POLL = 'gl.atomic_poll(turns_ptr + tile, part, sem="acquire", scope="gpu")'
PASS = 'gl.atomic_store(turns_ptr + tile, part + 1, sem="release", scope="gpu")'
RESET = '        gl.atomic_store(turns_ptr + tile, 0, sem="relaxed")\n'
LEAVE, READ_SUMS = "gl.store(sums_ptr + ", "x += gl.load(sums_ptr"
TURNS = {
    "turn_of_the_next_part": turn(
        K.DEADLOCK, "turns_ptr", "gl.atomic_poll(", edited(POLL, "part,", "part + 1,")
    ),
    "turn_of_the_other_tile": turn(
        K.DEADLOCK, "turns_ptr", "gl.atomic_poll(", edited(POLL, "turns_ptr + tile", "turns_ptr + (1 - tile)")
    ),
    "turn_not_awaited": turn(K.GLOBAL_RACE, "sums_ptr", f"{LEAVE}|{READ_SUMS}", (POLL, "pass")),
    "turn_awaited_without_an_order": turn(
        K.WEAK_ATOMIC, "sums_ptr", "gl.atomic_poll(", edited(POLL, "acquire", "relaxed")
    ),
    "turn_awaited_within_a_cta": turn(
        K.WEAK_ATOMIC, "turns_ptr|sums_ptr", "gl.atomic_", edited(POLL, '"gpu"', '"cta"')
    ),
    "turn_passed_without_an_order": turn(
        K.WEAK_ATOMIC, "sums_ptr", "gl.atomic_store(", edited(PASS, "release", "relaxed")
    ),
    "turn_passed_within_a_cta": turn(
        K.WEAK_ATOMIC, "turns_ptr|sums_ptr", "gl.atomic_", edited(PASS, '"gpu"', '"cta"')
    ),
    "turn_passed_before_the_sum_is_left": turn(
        K.GLOBAL_RACE,
        "sums_ptr",
        f"{LEAVE}|{READ_SUMS}",
        (f"        {PASS}\n", ""),
        ("    if part < parts - 1:\n", f"    if part < parts - 1:\n        {PASS}\n"),
    ),
    "turn_passed_to_the_part_behind_the_next": turn(
        K.DEADLOCK, "turns_ptr", "gl.atomic_poll(", edited(PASS, "part + 1", "part + 2")
    ),
    "turns_not_restored": turn(K.WORKSPACE_NOT_RESTORED, "turns_ptr", "gl.atomic_store(", (RESET, "")),
    "turns_restored_to_one": turn(
        K.WORKSPACE_NOT_RESTORED, "turns_ptr", RESET.strip().replace("0", "1"), edited(RESET, " 0,", " 1,")
    ),
    "first_part_adds_what_was_there": turn(K.WRONG_NUMBERS, "d_ptr", "", ("if part > 0:", "if part >= 0:")),
    "second_part_begins_anew": turn(K.WRONG_NUMBERS, "d_ptr", "", ("if part > 0:", "if part > 1:")),
    "last_part_but_one_stores": turn(
        K.DEADLOCK, "turns_ptr", "gl.atomic_poll(", ("if part < parts - 1:", "if part < parts - 2:")
    ),
    "sums_of_tiles_in_one_place": turn(
        K.GLOBAL_RACE,
        "sums_ptr",
        f"{LEAVE}|{READ_SUMS}",
        edited("gl.store(sums_ptr + tile * 128", "tile", "0"),
    ),
}
MEET_BEFORE = "        hopper.cluster.barrier()\n        buffer.store(x)\n"
MEET_BEHIND = "        buffer.store(x)\n        hopper.cluster.barrier()\n"
EXPECT_SENT = "        mbarrier.expect(ready, buffer.nbytes_per_cta)\n"
MEET, SEND = "        hopper.cluster.barrier()\n", "        hopper.async_store(buffer, x, ready)\n"
SENT_WAIT = "        mbarrier.wait(ready, step & 1)\n"
GROUP_WAIT = "        mbarrier.wait(group_empty.index(slot), step // 2 & 1 ^ 1)\n"
OWN_WAIT = "        mbarrier.wait(empty.index(slot), step // 2 & 1 ^ 1)\n"
GROUP_RELEASE = "        mbarrier.arrive(group_empty.index(slot))\n"
OWN_RELEASE = "        mbarrier.arrive(empty.index(slot))\n"
READ_TILE = "        total += page.index(slot).load(QUARTERS)\n        fence_async_shared()\n"
GROUP = "gl.allocate_shared_memory(gl.int64, [2, 2], mbarrier.MBarrierLayout([[0], [1]]))"
CLUSTERS = {
    "exchange_without_a_meeting_before_the_store": swap(
        K.WRITE_AFTER_READ, "buffer", "buffer.store(", (MEET_BEFORE, "        buffer.store(x)\n")
    ),
    "exchange_without_a_meeting_behind_the_store": swap(
        K.UNINITIALISED_READ, "buffer", "buffer.load(", (MEET_BEHIND, "        buffer.store(x)\n")
    ),
    "sent_before_the_others_have_read": send(
        K.WRITE_AFTER_READ, "buffer", "hopper.async_store(", (MEET + SEND, SEND)
    ),
    "sent_and_not_awaited": send(K.UNINITIALISED_READ, "buffer", "buffer.load(", (SENT_WAIT, "")),
    "sent_with_half_of_the_bytes_expected": send(
        K.BYTE_COUNT, "ready", "mbarrier.expect(", edited(EXPECT_SENT, "_per_cta", "_per_cta // 2")
    ),
    "sent_before_the_bytes_are_expected": send(
        K.DEADLOCK, "ready", "mbarrier.wait(", (EXPECT_SENT, ""), (SENT_WAIT, SENT_WAIT + EXPECT_SENT)
    ),
    "sent_with_a_barrier_of_one_cta": send(
        K.READ_AFTER_WRITE,
        "buffer",
        "buffer.load(",
        (
            "mbarrier.allocate_mbarrier()",
            "gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout([[0]]))",
        ),
    ),
    "multicast_before_the_group_has_read": loads(
        K.WRITE_AFTER_READ, "page", "tma.async_load(", (GROUP_WAIT, "")
    ),
    "multicast_group_awaited_behind_the_load": loads(
        K.WRITE_AFTER_READ,
        "page",
        "tma.async_load(",
        (GROUP_WAIT, ""),
        ("multicast=True)\n", f"multicast=True)\n{GROUP_WAIT}"),
    ),
    "multicast_group_of_the_lap_before": loads(
        K.DEADLOCK, "group_empty", "mbarrier.wait(group_empty", edited(GROUP_WAIT, " ^ 1", "")
    ),
    "multicast_to_a_slot_of_the_barrier_before": loads(
        K.WRITE_AFTER_READ, "page", "tma.async_load(", ("page.index(slot),", "page.index(1 - slot),")
    ),
    "multicast_released_before_it_was_read": reads(
        K.WRITE_AFTER_READ,
        "page",
        "tma.async_load(",
        (GROUP_RELEASE, ""),
        (READ_TILE, GROUP_RELEASE + READ_TILE),
    ),
    "multicast_released_to_the_own_cta": share(
        K.WRITE_AFTER_READ, "page", "tma.async_load(", (GROUP, "mbarrier.allocate_mbarrier(batch=2)")
    ),
    "multicast_released_by_the_other_pair": share(
        K.WRITE_AFTER_READ, "page", "tma.async_load(", edited(GROUP, "[[0], [1]]", "[[1], [0]]")
    ),
    "multicast_released_by_all_ctas": share(
        K.WRITE_AFTER_READ,
        "page",
        "tma.async_load(",
        edited(
            GROUP,
            "[2, 2], mbarrier.MBarrierLayout([[0], [1]])",
            "[2, 1], mbarrier.MBarrierLayout([[0], [0]])",
        ),
    ),
    # The second CTA of a pair does not wait for the first one, and arrives twice in one phase.
    "multicast_that_each_cta_issues": loads(
        K.DEADLOCK, "group_empty", "mbarrier.wait(group_empty", (", multicast=True", "")
    ),
    "multicast_released_twice": reads(
        K.WRITE_AFTER_READ, "page", "tma.async_load(", (GROUP_RELEASE, GROUP_RELEASE * 2)
    ),
    "multicast_other_slot_released": reads(
        K.EARLY_ARRIVAL,
        "group_empty",
        "mbarrier.arrive(group_empty",
        edited(GROUP_RELEASE, "slot", "1 - slot"),
    ),
    "multicast_group_released_alone": reads(K.DEADLOCK, "empty", "mbarrier.wait(empty", (OWN_RELEASE, "")),
    "multicast_read_without_a_fence": reads(
        K.MISSING_FENCE, "page", "tma.async_load(", ("        fence_async_shared()\n", "")
    ),
}
GDC_WAIT = "    gdc_wait()\n"
LOAD_X = "    tma.async_load(x_desc, [first, 0], ready, page)\n"
READY = "    mbarrier.wait(ready, 0)\n"
DEPENDENT = {
    "dependent_load_before_the_wait": early(
        K.EARLY_ACCESS, "x_desc", "tma.async_load(", (GDC_WAIT, ""), (LOAD_X, LOAD_X + GDC_WAIT)
    ),
    "dependent_wait_of_one_program": early(
        K.EARLY_ACCESS, "x_desc", "tma.async_load(", (GDC_WAIT, f"    if first == 0:\n    {GDC_WAIT}")
    ),
    "dependent_without_a_wait": early(K.EARLY_ACCESS, "x_desc", "tma.async_load(", (GDC_WAIT, "")),
    "dependent_count_before_the_wait": early(
        K.EARLY_ACCESS,
        "count_ptr",
        "gl.atomic_add(",
        ("    gl.atomic_add(count_ptr, 1)\n", ""),
        (GDC_WAIT, f"    gl.atomic_add(count_ptr, 1)\n{GDC_WAIT}"),
    ),
}
FAULTS = TURNS | CLUSTERS | DEPENDENT
HARMLESS = {
    # The next kernel waits for the end of this one, and not for the permission to begin.
    "dependent_permission_before_the_wait": early(
        "",
        "",
        "",
        ("    gdc_launch_dependents()\n", ""),
        (GDC_WAIT, f"    gdc_launch_dependents()\n{GDC_WAIT}"),
    ),
}
