"""Faults in kernels that nobody here wrote: what is replaced in which function, and what must be told.

Of the files stands here no more than what tells the place of a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmgen.hardware import BLACKWELL, HOPPER, Architecture
from gluonsim import Kind, Severity
from mutants.mutant import NOTHING, changed
from mutants.symptom import Symptom

K = Kind


@dataclass(frozen=True)
class Changed:
    """A part of a function that is replaced; it is there once."""

    function: str
    old: str
    new: str

    def made_in(self, text: str) -> str:
        """Return the file's text with the change made."""
        start = text.index(f"\ndef {self.function}(")
        end = text.find("\n\n\n", start)
        body = changed(text[start:end], ((self.old, self.new),), self.function)
        return text[:start] + body + text[end:]


@dataclass(frozen=True)
class TutorialMutant:
    """One fault in one case of a file's tests."""

    file: str
    test: str
    case: str
    """A part of the parameters of the case."""
    symptom: Symptom
    changes: tuple[Changed, ...]
    target: Architecture = HOPPER
    repair: tuple[tuple[str, str], ...] = ()
    """Of the file's own fault, which would hide this one."""

    @property
    def where(self) -> tuple[str, str, str, Architecture]:
        """The case that it is in."""
        return self.file, self.test, self.case, self.target

    def repaired(self, text: str) -> str:
        """Return the file's text without its own fault."""
        return changed(text, self.repair, self.file)

    def made_in(self, text: str) -> str:
        """Return the file's text with the fault."""
        text = self.repaired(text)
        for change in self.changes:
            text = change.made_in(text)
        return text


def of(
    file: str,
    test: str,
    case: str,
    target: Architecture = HOPPER,
    repair: tuple[tuple[str, str], ...] = (),
) -> Callable[..., TutorialMutant]:
    """Return what makes mutants of the kernel that a test runs."""

    def mutant(
        kind: str,
        name: str,
        line: str,
        *changes: tuple[str, str, str],
        severity: Severity = Severity.ERROR,
        also: tuple[tuple[str, str, str], ...] = (),
    ) -> TutorialMutant:
        symptom = Symptom(kind, name, line, severity, also)
        made = tuple(Changed(*change) for change in changes)
        return TutorialMutant(file, test, case, symptom, made, target, repair)

    return mutant


add = of("04-tma.py", "test_elementwise_add_pipelined", "200-332-32-64-3")
LOAD_A, LOAD_B, TMA_STORE = "tma.async_load(a_desc", "tma.async_load(b_desc", "tma.async_store(c_desc"
BYTES = "mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)"
STORE_WAIT = "    tma.store_wait(pendings=0)\n"
FENCE = "    fence_async_shared()\n"
ADD = {
    "add parity flipped": add(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        "_smem.index(read_index % num_buffers).load(",
        ("perform_add", "// num_buffers & 1", "// num_buffers & 1 ^ 1"),
    ),
    "add of the next slot": add(
        K.READ_AFTER_WRITE,
        "a_smem",
        "a_val = ",
        ("perform_add", "a_smem.index(read_index %", "a_smem.index((read_index + 1) %"),
    ),
    "add bytes of A alone": add(
        K.BYTE_COUNT, "bars", "mbarrier.expect(", ("issue_loads", " + b_desc.nbytes_per_cta)", ")")
    ),
    "add waits for its store too late": add(
        K.WRITE_AFTER_READ,
        "c_smem",
        "c_smem.store(",
        (
            "perform_add",
            f"{STORE_WAIT}    c_smem.store(c_val)\n",
            f"    c_smem.store(c_val)\n{STORE_WAIT}",
        ),
    ),
    "add leaves a store running": add(
        K.WORK_IN_FLIGHT, "c_smem", TMA_STORE, ("elementwise_add_tma_kernel", "(pendings=0)", "(pendings=1)")
    ),
    "add loads B into the first slot": add(
        K.WRITE_AFTER_WRITE,
        "b_smem",
        LOAD_B,
        ("issue_loads", "b_smem.index(copy_index % num_buffers)", "b_smem.index(copy_index * 0)"),
    ),
    "add without its fence": add(
        K.MISSING_FENCE, "c_smem", TMA_STORE, ("perform_add", FENCE, ""), severity=Severity.LINT
    ),
    "add of two arrivals": add(
        K.DEADLOCK, "bars", "mbarrier.wait(", ("elementwise_add_tma_kernel", "count=1)", "count=2)")
    ),
    "add loads once more than there are slots": add(
        K.WRITE_AFTER_WRITE,
        "a_smem|b_smem",
        "tma.async_load(",
        (
            "elementwise_add_tma_kernel",
            "range(num_buffers - 1):\n        copy_index",
            "range(num_buffers):\n        copy_index",
        ),
        also=((K.ARRIVAL_OVERFLOW, "bars", "mbarrier.expect("),),
    ),
}

small = of("05-wgmma.py", "test_small_mma", "64-256-128-True-64-4")
blocked = of("05-wgmma.py", "test_blocked_matmul", "208-416-304-64-64-64-False-4")
pipelined = of("05-wgmma.py", "test_blocked_matmul_pipelined", "208-416-304-64-64-64-4")
HOPPER_MMA = {
    "small MMA awaits the other parity": small(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem|c_smem",
        "_smem.load(",
        ("small_mma_kernel", "(bar, phase=0)", "(bar, phase=1)"),
    ),
    "blocked parity never turns": blocked(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        "warpgroup_mma(a_smem",
        ("blocked_matmul_kernel", "phase ^= 1", "phase ^= 0"),
        also=((K.DEADLOCK, "bar", "mbarrier.wait("),),
    ),
    "blocked MMA left running": blocked(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ("blocked_matmul_kernel", "num_outstanding=0", "num_outstanding=1"),
        also=((K.ACCUMULATOR_IN_FLIGHT, "acc", "acc.to(dtype)"),),
    ),
    "blocked barrier invalidated before its use": blocked(
        K.UNINITIALISED_BARRIER,
        "bar",
        "mbarrier.expect(",
        ("blocked_matmul_kernel", "    phase = 0\n", "    phase = 0\n    mbarrier.invalidate(bar)\n"),
        ("blocked_matmul_kernel", "    mbarrier.invalidate(bar)\n\n    # D", "\n    # D"),
    ),
    "blocked store without its tile": blocked(
        K.UNINITIALISED_READ,
        "c_smem",
        TMA_STORE,
        ("blocked_matmul_kernel", "    c_smem.store(acc.to(dtype))\n", ""),
    ),
    "pipelined in one slot": pipelined(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ("blocked_matmul_pipelined_kernel", "index ^= 1", "index ^= 0"),
    ),
    "pipelined MMA left running": pipelined(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        (
            "blocked_matmul_pipelined_kernel",
            "warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))\n        acc",
            "warpgroup_mma_wait(num_outstanding=2, deps=(acc, ))\n        acc",
        ),
    ),
    "pipelined last MMA not awaited": pipelined(
        K.ACCUMULATOR_IN_FLIGHT,
        "acc",
        "acc.to(dtype)",
        (
            "blocked_matmul_pipelined_kernel",
            "num_outstanding=0, deps=(acc, ))\n\n",
            "num_outstanding=1, deps=(acc, ))\n\n",
        ),
    ),
}

tcgen05 = of("06-tcgen05.py", "test_blocked_matmul", "208-416-304-64-64-64-False-4", BLACKWELL)
overlapped = of("06-tcgen05.py", "test_blocked_matmul_pipelined", "208-416-304-64-64-64-4", BLACKWELL)
MMA_THEN_COMMIT = (
    "        tcgen05_mma(a_smem, b, acc_tmem, use_acc=use_acc)\n",
    "        tcgen05_commit(mma_bar)\n",
)
BLACKWELL_MMA = {
    "tcgen05 MMA not awaited": tcgen05(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ("blocked_matmul_kernel", "mbarrier.wait(mma_bar, phase=phase)", NOTHING),
    ),
    "tcgen05 commit to the loads' barrier": tcgen05(
        K.DEADLOCK,
        "mma_bar",
        "mbarrier.wait(mma_bar",
        ("blocked_matmul_kernel", "commit(mma_bar)", "commit(tma_bar)"),
    ),
    "tcgen05 sums begin with what was there": tcgen05(
        K.UNINITIALISED_READ,
        "acc_tmem",
        "tcgen05_mma(",
        ("blocked_matmul_kernel", "use_acc = False", "use_acc = True"),
    ),
    "tcgen05 commit before the MMA": tcgen05(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ("blocked_matmul_kernel", "".join(MMA_THEN_COMMIT), "".join(MMA_THEN_COMMIT[::-1])),
    ),
    "overlapped MMA not awaited": overlapped(
        K.WRITE_AFTER_READ,
        "b_bufs",
        "tma.async_load(b_desc",
        (
            "blocked_matmul_pipelined_kernel",
            "mbarrier.wait(mma_vb_bars.index(mma_index), mma_phase)",
            NOTHING,
        ),
        also=((K.WRITE_AFTER_READ, "v_bufs", LOAD_A),),
    ),
    "overlapped sums read before their wait": overlapped(
        K.READ_AFTER_WRITE,
        "vb_tmem",
        "vb = vb_tmem.load()",
        ("blocked_matmul_pipelined_kernel", "mbarrier.wait(vb_bar, epilogue_phase)", NOTHING),
    ),
    "overlapped tiles in one buffer": overlapped(
        K.WRITE_AFTER_READ,
        "c_smem",
        "c_smem.store(vb",
        ("blocked_matmul_pipelined_kernel", f"{STORE_WAIT}    c_smem.store(vb", "    c_smem.store(vb"),
    ),
}

roles = of("08-warp-specialization.py", "test_elementwise_add_warp_specialized", "200-332-32-64-2-2-4")
REPAIR = (
    (
        "acc_state = acc_state.next()\n\n        accs =",
        "read = acc_state.index\n        acc_state = acc_state.next()\n\n        accs =",
    ),
    ("arrive(acc_empty_bars.index(acc_state.index)", "arrive(acc_empty_bars.index(read)"),
)
"""Of the accumulator that is released."""
matmul, matmul_of_three_tiles = (
    of(
        "08-warp-specialization.py",
        "test_matmul_warp_specialized",
        f"{shape}-128-256-64-2-4-4-PersistentTileScheduler",
        BLACKWELL,
        REPAIR,
    )
    for shape in ("208-416-304", "272-400-464")
)
ARRIVE = "        mbarrier.arrive(load_empty_bar, count=1)\n"
READ_A = "        a_val = a_buf.load(layout)\n"
ACC_WAIT = "        mbarrier.wait(acc_ready_bars.index(acc_state.index), acc_state.phase)\n"
ACC_READ = "        acc = p.acc_bufs.index(acc_state.index).load()\n"
SPECIALIZED = {
    "roles begin with full buffers": roles(
        K.DEADLOCK,
        "load_empty_bars",
        "mbarrier.wait(load_empty_bar",
        ("load_partition", "phase ^ 1)", "phase)"),
    ),
    "roles release before they read": roles(
        K.WRITE_AFTER_READ,
        "a_bufs|b_bufs",
        "tma.async_load(",
        ("compute_partition", ARRIVE, ""),
        ("compute_partition", READ_A, ARRIVE + READ_A),
    ),
    "roles release without the predicate": roles(
        K.UNDEFINED_VALUE,
        "c_empty_bars",
        "mbarrier.arrive(c_empty_bar",
        ("store_partition", ", pred=i >= outstanding_stores", ""),
    ),
    "roles leave one store too many": roles(
        K.WRITE_AFTER_READ,
        "c_bufs",
        "c_buf.store(",
        ("store_partition", "store_wait(outstanding_stores)", "store_wait(outstanding_stores + 1)"),
    ),
    "roles store without a fence": roles(
        K.MISSING_FENCE,
        "c_bufs",
        TMA_STORE,
        ("compute_partition", f"TMA store.\n    {FENCE}", "TMA store.\n"),
    ),
    "roles load without a fence": roles(
        K.MISSING_FENCE,
        "a_bufs|b_bufs",
        "tma.async_load(",
        ("compute_partition", f"shared load.\n    {FENCE}", "shared load.\n"),
    ),
    "roles signal the wrong barrier": roles(
        K.DEADLOCK,
        "c_ready_bars",
        "mbarrier.wait(c_ready_bar",
        ("compute_partition", "c_ready_bars.index(", "c_empty_bars.index("),
    ),
    "matmul sums read before their wait": matmul(
        K.UNINITIALISED_READ,
        "acc_bufs",
        ACC_READ.strip(),
        ("matmul_epilogue_partition", ACC_WAIT + ACC_READ, ACC_READ + ACC_WAIT),
    ),
    "matmul sums not awaited before reuse": matmul_of_three_tiles(
        K.WRITE_AFTER_READ,
        "acc_bufs",
        "tcgen05_mma(",
        (
            "matmul_mma_partition",
            "mbarrier.wait(acc_empty_bars.index(acc_state.index), acc_state.phase)",
            NOTHING,
        ),
    ),
    "matmul sub-tiles in one buffer": matmul(
        K.WRITE_AFTER_READ,
        "acc_smem",
        "acc_smem.store(",
        ("matmul_epilogue_partition", "tma.store_wait(pendings=0)  #", "pass  #"),
    ),
    "matmul commits to the ready barrier": matmul(
        K.DEADLOCK,
        "load_empty_bars",
        "mbarrier.wait(empty_bars.index(",
        ("matmul_mma_partition", "commit(load_empty_bars", "commit(load_ready_bars"),
    ),
}

MUTANTS = ADD | HOPPER_MMA | BLACKWELL_MMA | SPECIALIZED
