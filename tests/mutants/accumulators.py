"""Faults of tensor memory: commits, accumulators and operands there; and the stores of an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gluonsim import Kind, Result, Severity, simulate
from mutants.committed import changed_within as edited
from mutants.handwritten import faults_of
from mutants.pages import described
from mutants.registers import random

K = Kind


def product(module: Any, schedules: Sequence[str]) -> Result:
    """Multiply two tiles by seven steps."""
    a, b = random(256, 448).half(), random(448, 64).half()
    expect = {"d_ptr": a.float() @ b.float()}
    launched = simulate(module.product_kernel, "b200", schedules=schedules, expect=expect)
    return launched[1](described(a, [128, 64]), described(b, [64, 64]), torch.zeros(256, 64), 7, 2)


def chained(module: Any, schedules: Sequence[str]) -> Result:
    """Multiply three tiles, with small numbers that fp16 holds exactly."""
    a, b, c = (random(rows, 64).clamp(-2, 2) for rows in (384, 64, 64))
    expect = {"d_ptr": (a @ b * 2) @ c}
    launched = simulate(module.chained_kernel, "b200", schedules=schedules, expect=expect)
    tiles = described(a.half(), [128, 64]), described(b.half(), [64, 64]), described(c.half(), [64, 64])
    return launched[1](*tiles, torch.zeros(384, 64), 3)


def roles(module: Any, schedules: Sequence[str]) -> Result:
    """Multiply six tiles, three in each accumulator."""
    a, b, d = random(768, 64).half(), random(64, 64).half(), torch.zeros(768, 64)
    expect = {"d_desc": a.float() @ b.float()}
    launched = simulate(module.roles_kernel, "b200", schedules=schedules, expect=expect)
    tiles = described(a, [128, 64]), described(b, [64, 64]), described(d, [128, 32])
    return launched[1](*tiles, 6)


LAUNCHES = {"product": product, "chained": chained, "roles": roles}
steps, chain, both = (
    faults_of("accumulators", f"{name}_kernel", launch) for name, launch in LAUNCHES.items()
)
multiplies, stores = (faults_of("accumulators", f"_{role}", roles) for role in ("multiplies", "stores"))
MMA = "tcgen05_mma("
STAGE_WAIT = "            mbarrier.wait(multiplied.index(stage), number // 2 & 1 ^ 1)\n"
LOAD_WAIT = "            mbarrier.wait(loaded.index(stage), number // 2 & 1)\n"
STEP = "            tcgen05_mma(a.index(stage), b.index(stage), sums, use_acc=step > 0)\n"
COMMIT = "            tcgen05_commit(multiplied.index(stage))\n"
LAST_WAIT = "        mbarrier.wait(multiplied.index(last % 2), last // 2 & 1)\n"
PRODUCT = {
    "sums_read_before_the_last_commit": steps(K.READ_AFTER_WRITE, "sums", "sums.load()", (LAST_WAIT, "")),
    "sums_read_when_the_step_before_is_done": steps(
        K.READ_AFTER_WRITE,
        "sums",
        "sums.load()",
        (LAST_WAIT, LAST_WAIT.replace("last", "(last - 1)")),
    ),
    "sums_committed_before_the_mma": steps(
        K.READ_AFTER_WRITE,
        "sums",
        "sums.load()",
        (STEP + COMMIT, COMMIT + STEP),
        also=((K.WRITE_AFTER_READ, "a|b", "tma.async_load("),),
    ),
    "sums_committed_by_a_plain_arrival": steps(
        K.READ_AFTER_WRITE,
        "sums",
        "sums.load()",
        edited(COMMIT, "tcgen05_commit", "mbarrier.arrive"),
        also=((K.WRITE_AFTER_READ, "a|b", "tma.async_load("),),
    ),
    "sums_never_committed": steps(K.DEADLOCK, "multiplied", "mbarrier.wait(multiplied", (COMMIT, "")),
    "sums_committed_to_the_other_stage": steps(
        K.DEADLOCK, "multiplied", "mbarrier.wait(multiplied", edited(COMMIT, "stage", "1 - stage")
    ),
    "sums_begin_with_the_tile_before": steps(
        K.UNINITIALISED_READ, "sums", MMA, edited(STEP, "step > 0", "True")
    ),
    "sums_begin_anew_in_every_step": steps(K.WRONG_NUMBERS, "d_ptr", "", edited(STEP, "step > 0", "False")),
    "sums_begin_anew_in_the_first_tile": steps(
        K.WRONG_NUMBERS, "d_ptr", "", edited(STEP, "step > 0", "number > 0")
    ),
    "stage_loaded_while_the_mma_reads": steps(K.WRITE_AFTER_READ, "a|b", "tma.async_load(", (STAGE_WAIT, "")),
    "stage_multiplied_before_it_is_there": steps(K.READ_AFTER_WRITE, "a|b", MMA, (LOAD_WAIT, "")),
    "stage_of_the_other_parity": steps(K.READ_AFTER_WRITE, "a|b", MMA, edited(LOAD_WAIT, "& 1", "& 1 ^ 1")),
    "stage_of_the_step_before_multiplied": steps(
        K.UNINITIALISED_READ, "b", MMA, edited(STEP, "b.index(stage)", "b.index(1 - stage)")
    ),
}
FIRST_WAIT, SECOND_WAIT = "        mbarrier.wait(multiplied, 0)\n", "        mbarrier.wait(multiplied, 1)\n"
OPERAND = "    operand = allocate_tensor_memory(gl.float16, [128, 64], SUMS)\n"
OPERAND_OVER = "    operand = first.slice(0, 32).reinterpret(gl.float16, [128, 64], SUMS)\n"
SECOND_SUMS = "    second = allocate_tensor_memory(gl.float32, [128, 64], SUMS)\n"
SCALE = "        scaled = (first.load() * 2).to(gl.float16)\n"
KEEP = "        operand.store(gl.convert_layout(scaled, operand.get_reg_layout()))\n"
SECOND = "        tcgen05_mma(operand, c, second, use_acc=False)\n"
COMMIT_ALL = "        tcgen05_commit(multiplied)\n"
CHAINED = {
    "first_product_read_too_early": chain(
        K.READ_AFTER_WRITE, "first", "first.load()", (FIRST_WAIT + SCALE, SCALE + FIRST_WAIT)
    ),
    "second_product_read_too_early": chain(K.READ_AFTER_WRITE, "second", "second.load()", (SECOND_WAIT, "")),
    "operand_kept_behind_its_mma": chain(
        K.UNINITIALISED_READ, "operand", MMA, (KEEP + SECOND, SECOND + KEEP)
    ),
    "operand_over_the_second_product": chain(
        K.WRITE_AFTER_READ,
        "second",
        MMA,
        (OPERAND + SECOND_SUMS, SECOND_SUMS + OPERAND_OVER.replace("first", "second")),
    ),
    "second_product_committed_before_its_mma": chain(
        K.READ_AFTER_WRITE, "second", "second.load()", (SECOND + COMMIT_ALL, COMMIT_ALL + SECOND)
    ),
    "second_product_over_the_first": chain(
        K.WRONG_NUMBERS,
        "d_ptr",
        "",
        ("stored(d_ptr, tile, second.load())", "stored(d_ptr, tile, first.load())"),
    ),
}
EMPTY_WAIT = "        mbarrier.wait(empty.index(slot), tile // 2 & 1 ^ 1)\n"
READY_WAIT = "        mbarrier.wait(ready.index(slot), tile // 2 & 1)\n"
RELEASE = "        mbarrier.arrive(empty.index(slot))\n"
STORE_WAIT, FENCE = "            tma.store_wait(1)\n", "            fence_async_shared()\n"
PAGE, READ = "            page.index(half).store(values)\n", "sums.index(slot).slice("
STORE = "            tma.async_store(d_desc, [tile * 128, half * 32], page.index(half))\n"
ROLES = {
    "slot_multiplied_before_it_was_read": multiplies(K.WRITE_AFTER_READ, "sums", MMA, (EMPTY_WAIT, "")),
    "slot_of_the_other_parity": multiplies(
        K.DEADLOCK, "empty", "mbarrier.wait(empty", edited(EMPTY_WAIT, "& 1 ^ 1", "& 1")
    ),
    "slot_always_the_first": multiplies(
        K.WRITE_AFTER_READ, "sums", MMA, ("sums.index(slot)", "sums.index(0)")
    ),
    "slot_not_released": stores(K.DEADLOCK, "empty", "mbarrier.wait(empty", (RELEASE, "")),
    "slot_released_before_it_was_read": stores(
        K.WRITE_AFTER_READ, "sums", MMA, (RELEASE, ""), (READY_WAIT, READY_WAIT + RELEASE)
    ),
    "slot_released_after_each_half": stores(
        K.EARLY_ARRIVAL, "empty", "mbarrier.arrive(empty", (RELEASE, ""), (STORE, STORE + f"    {RELEASE}")
    ),
    "slot_read_before_it_is_ready": stores(K.UNINITIALISED_READ, "sums", READ, (READY_WAIT, "")),
    "slot_committed_in_the_lap_before": stores(
        K.UNINITIALISED_READ, "sums", READ, edited(READY_WAIT, "& 1", "& 1 ^ 1")
    ),
    "page_stored_into_while_it_is_sent": stores(
        K.WRITE_AFTER_READ, "page", "page.index(half).store(", edited(STORE_WAIT, "1", "2")
    ),
    "page_awaited_behind_the_store": stores(
        K.WRITE_AFTER_READ, "page", "page.index(half).store(", (STORE_WAIT + PAGE, PAGE + STORE_WAIT)
    ),
    "page_of_the_other_half": stores(
        K.WRITE_AFTER_READ, "page", "page.index(0).store(", edited(PAGE, "half", "0")
    ),
    "page_sent_before_it_is_written": stores(
        K.UNINITIALISED_READ, "page", "tma.async_store(", (PAGE, ""), (STORE, STORE + PAGE)
    ),
    "page_sent_without_a_fence": stores(
        K.MISSING_FENCE, "page", "tma.async_store(", (FENCE, ""), severity=Severity.LINT
    ),
    "page_fenced_before_it_is_written": stores(
        K.MISSING_FENCE, "page", "tma.async_store(", (PAGE + FENCE, FENCE + PAGE), severity=Severity.LINT
    ),
    "page_sent_to_the_other_half": stores(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", edited(STORE, "half * 32]", "32]")
    ),
    "page_sent_to_the_rows_of_the_next_tile": stores(
        K.WRONG_NUMBERS, "d_desc", "", edited(STORE, "tile * 128", "(tile + 1) * 128")
    ),
    "last_pages_not_awaited": stores(
        K.WORK_IN_FLIGHT, "page", "tma.async_store(", ("    tma.store_wait(0)\n", "")
    ),
    "slots_counted_twice": both(
        K.DEADLOCK,
        "empty",
        "mbarrier.wait(empty",
        ("mbarrier.init(empty.index(slot), count=1)", "mbarrier.init(empty.index(slot), count=2)"),
    ),
    "slots_never_initialised": both(
        K.UNINITIALISED_BARRIER,
        "empty",
        "mbarrier.wait(empty",
        ("        mbarrier.init(empty.index(slot), count=1)\n", ""),
    ),
}
FAULTS = PRODUCT | CHAINED | ROLES
HARMLESS = {
    # The first product has been read when the operand overwrites it.
    "operand_over_the_first_product": chain("", "", "", (OPERAND, OPERAND_OVER)),
}
