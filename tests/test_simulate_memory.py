"""What stands for the contents of memory, and when they are copied; what schedules share changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from weakref import WeakSet

import pytest
import torch
from kernels import blackwell
from kernels.blackwell_launch import scaled
from kernels.launch import FIXED, launch
from modules import module_file
from mutants import blackwell as blackwell_mutants
from mutants import rings
from mutants.mutant import launch_of, product_of
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.verify.simulation import simulate_product
from gluonsim import Result
from gluonsim.execution import undisturbed
from gluonsim.findings import UNKNOWN, Findings
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import MemDescType
from gluonsim.memory import Memory, RelaxedMeetings, View
from gluonsim.places import Layout, shared_memory_index
from gluonsim.tensors.known import Known

pytestmark = pytest.mark.simulator

RING, SLOT = MemDescType((2, 4), "f32", None), MemDescType((4,), "f32", None)
HALF = MemDescType((2, 2), "f32", None)
INDEX, SUBSLICE = "ttg.memdesc_index", "ttg.memdesc_subslice"


def allocation(offset: int) -> Operation:
    return Operation(
        "ttg.local_alloc", ("%ring",), (), {"allocation.offset": offset}, (), (), (RING,), UNKNOWN
    )


def memory_of(*allocations: Operation) -> Memory:
    layout = Layout()
    for operation in allocations:
        layout.add(operation, shared_memory_index(operation))
    memory = Memory(0, layout, Findings())
    layout.sharers.append(memory)
    return memory


@pytest.fixture
def ring() -> View:
    """Two slots of four numbers."""
    operation = allocation(0)
    return memory_of(operation).allocations[operation]


def slot(ring: View, number: int) -> View:
    return ring.view((INDEX, number), SLOT)


def halves(ring: View) -> View:
    return ring.view((SUBSLICE, ((0, 0), (2, 2))), HALF)


def numbers(value: float, *shape: int) -> Tensor:
    return torch.full(shape, value)


def test_nothing_stands_for_what_was_never_written(ring: View) -> None:
    assert ring.numbers is None
    assert slot(ring, 0).numbers is None


def test_a_view_is_told_by_what_was_written_and_by_how_it_is_viewed(ring: View) -> None:
    ring.fill(numbers(1, 2, 4), "x")
    views = [ring, slot(ring, 0), slot(ring, 1), halves(ring)]
    assert len({view.numbers for view in views}) == 4
    assert None not in {view.numbers for view in views}
    before = [view.numbers for view in views]
    ring.fill(numbers(1, 2, 4), "x")
    assert [view.numbers for view in views] == before
    ring.fill(numbers(2, 2, 4), "y")
    assert not {view.numbers for view in views} & set(before)


def test_the_same_numbers_in_two_slots_are_told_alike(ring: View) -> None:
    slot(ring, 0).fill(numbers(1, 4), "x")
    slot(ring, 1).fill(numbers(1, 4), "x")
    assert slot(ring, 0).numbers == slot(ring, 1).numbers
    assert ring.numbers is None  # nobody wrote it as a whole
    assert halves(ring).numbers is None


def test_nothing_stands_for_what_was_overwritten_in_part(ring: View) -> None:
    ring.fill(numbers(1, 2, 4), "x")
    of_second = slot(ring, 1).numbers
    slot(ring, 0).fill(numbers(2, 4), "y")
    assert ring.numbers is None
    assert halves(ring).numbers is None
    assert slot(ring, 1).numbers == of_second
    halves(ring).fill(numbers(3, 2, 2))
    assert slot(ring, 0).numbers is None
    assert slot(ring, 1).numbers is None


def test_what_is_put_off_is_written_in_order(ring: View) -> None:
    slot(ring, 0).fill(numbers(1, 4), "a")
    ring.fill(numbers(2, 2, 4), "b")
    slot(ring, 1).fill(numbers(3, 4), "c")
    halves(ring).fill(numbers(4, 2, 2), "d")
    slot(ring, 1).fill(numbers(5, 4), "e")
    assert ring.data.equal(torch.tensor([[4.0, 4, 2, 2], [5, 5, 5, 5]]))
    halves(ring).fill(numbers(6, 2, 2))
    ring.fill(numbers(7, 2, 4), "f")
    slot(ring, 0).fill(numbers(8, 4))
    assert ring.data.equal(torch.tensor([[8.0] * 4, [7.0] * 4]))


def test_another_allocation_over_the_same_bytes_ends_what_is_known() -> None:
    first, second = allocation(0), allocation(16)  # the second slot is the other one's first
    memory = memory_of(first, second)
    ring, other = memory.allocations[first], memory.allocations[second]
    ring.fill(numbers(1, 2, 4), "x")
    assert other.numbers is None
    slot(other, 0).fill(numbers(2, 4), "y")
    assert ring.numbers is None
    assert slot(ring, 1).numbers is None
    assert slot(ring, 0).numbers is not None


EVERY = 4
"""One of so many: what a Blackwell kernel computes takes longer."""
MUTANTS = rings.MUTANTS | dict(list(blackwell_mutants.MUTANTS.items())[::EVERY])


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_faulty_kernel_shows_the_same_where_schedules_share_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A race brings contents that no other schedule has: they must be multiplied, not what should be there.
    product = replace(product_of(MUTANTS[name].stem), module=MUTANTS[name].source)
    shared = simulate_product(product, (launch_of(product),))
    monkeypatch.setattr(Known, "max_bytes", 0)
    alone = simulate_product(product, (launch_of(product),))
    assert shared.problems
    assert shared.problems == alone.problems
    assert shared.trace.spans == alone.trace.spans
    assert shared.trace.phases == alone.trace.phases


Ran = tuple[Result, Tensor, Tensor]


def dense(schedules: tuple[str, ...]) -> Ran:
    module = import_generated(module_file("h100_bf16"))
    return launch(module, (360, 248, 248), schedules=schedules)


def block_scaled(schedules: tuple[str, ...]) -> Ran:
    return scaled(blackwell, (768, 256, 256), schedules=schedules, seed=0)


@pytest.mark.parametrize("family", [dense, block_scaled], ids=lambda family: family.__name__)
def test_no_memory_is_left_when_its_program_has_ended(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks for garbage in circles meanwhile.
    memories: WeakSet[Memory] = WeakSet()
    begin = Memory.__init__

    def noted(
        self: Memory,
        cta: int,
        layout: Layout,
        findings: Findings,
        relaxed: RelaxedMeetings | None = None,
    ) -> None:
        begin(self, cta, layout, findings, relaxed)
        memories.add(self)
        most.append(len(memories))

    most: list[int] = []
    monkeypatch.setattr(Memory, "__init__", noted)
    with undisturbed():
        family((*FIXED, "random"))
        assert not memories
    # Shared and tensor memory of each CTA of one program at a time.
    assert max(most) == (2 if family is dense else 4)


Family = Callable[[tuple[str, ...]], Ran]


@pytest.mark.parametrize("family", [dense, block_scaled], ids=lambda family: family.__name__)
def test_what_schedules_share_is_computed_in_the_first_one_only(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    tensor = Known.tensor

    def counted(
        self: Known,
        op: Operation,
        operands: Sequence[Hashable | None],
        compute: Callable[[], Tensor],
        *,
        changes: bool = False,
    ) -> Tensor:
        def noted() -> Tensor:
            computed.append(op.name)
            return compute()

        return tensor(self, op, operands, noted, changes=changes)

    monkeypatch.setattr(Known, "tensor", counted)
    multiplies = "ttng.warp_group_dot" if family is dense else "ttng.tc_gen5_mma_scaled"
    result, found, _ = family((*FIXED, "random"))
    shared = computed.count(multiplies)
    computed.clear()
    result_alone, found_alone, _ = family(FIXED[:1])
    assert shared == computed.count(multiplies) > 0
    computed.clear()
    monkeypatch.setattr(Known, "max_bytes", 0)
    result_full, found_full, _ = family((*FIXED, "random"))
    assert computed.count(multiplies) == 4 * shared
    assert (result.findings, result_alone.findings, result_full.findings) == ((), (), ())
    assert result.phases == result_full.phases
    assert result.trace.spans == result_full.trace.spans == result_alone.trace.spans
    assert found.equal(found_full)
    assert found.equal(found_alone)
