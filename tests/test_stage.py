"""A stage is its payloads: another one is counted, allocated, loaded, passed and told by itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import pytest
from hopper import hopper
from modules import spec_file

from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.rule import altered
from gemmgen.plan.stage import Payload, Stage
from gemmgen.plan.storage import Extent
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner.ledger import ledger
from gemmgen.product import make

ROWS = 128
"""Rows of A of a CTA, which have a scale of 4 bytes each for a K step."""


@dataclass(frozen=True, kw_only=True)
class Scaled(WgmmaKernel):
    """A kernel that also loads a scale for each row of A, for 128 elements of K."""

    @cached_property
    def stage(self) -> Stage:
        """The tiles of A and B, and a row of scales."""
        scales = Payload(
            tensor="a_scale",
            kind="block_scales",
            dtype=DTYPES["fp32"],
            axis="m",
            box=(Extent(1), Extent(ROWS * self.cluster_m)),
            elements=ROWS,
            bits=32,
            loads_per_tile=1,
            words="128 fp32",
            sharing=self.cluster_n,
        )
        return Stage((*super().stage.payloads, scales))


@pytest.mark.quick
@pytest.mark.parametrize("stem", ["h100_bf16", "h100_bf16_cluster1x2"])
def test_another_payload_is_in_all_that_follows_from_a_stage(stem: str) -> None:
    plain = hopper(make(spec_file(stem)).plan)
    scaled = Scaled(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    assert scaled.stage_bytes == plain.stage_bytes + 512
    assert scaled.stage.awaited_bytes == plain.stage.awaited_bytes + 512
    assert (scaled.loads("a_scale"), plain.loads("a_scale")) == (1, 0)
    (buffer,) = scaled.resources.of("a_scale")
    assert (buffer.name, buffer.bytes) == ("a_scale_smem", plain.stages * 512)
    assert scaled.smem_bytes >= plain.smem_bytes + buffer.bytes
    assert scaled.argument("a_scale").along == "m"
    assert all(buffer in partition.passes for partition in scaled.partitions)
    assert scaled.argument("a_scale") in scaled.producer_partition.passes
    assert "+ 512 of scales" in str(ledger(scaled))
    shared = plain.cluster_n > 1
    assert ("a_scale" in scaled.multicast) == shared
    names = [barrier.name for barrier in scaled.barriers]
    assert ("a_scale_multicast_empty" in names) == shared


@pytest.mark.quick
def test_the_tiles_of_many_consumers_are_one_payload() -> None:
    """A search asks also for the bytes of plans with more consumers than any rule allows."""
    plain = hopper(make(spec_file("h100_bf16")).plan)
    two = altered(plain, consumers=2, specialization="cooperative", cta_tile_m=128)
    many = altered(two, consumers=10**9, cta_tile_m=64 * 10**9)
    assert [payload.count for payload in two.stage.payloads] == [2, 1]
    assert [payload.count for payload in many.stage.payloads] == [10**9, 1]
    of_a = two.stage.bytes_of("a")
    assert (two.loads("a"), two.loads("b")) == (2, plain.loads("b"))
    assert many.stage.bytes_of("a") == of_a // 2 * 10**9
    first, second, of_b = two.resources.tiles
    assert [buffer.name for buffer in (first, second, of_b)] == ["a_smem_0", "a_smem_1", "b_smem"]
    assert [consumer.tiles for consumer in two.resources.consumers] == [(first, of_b), (second, of_b)]


@pytest.mark.quick
def test_each_part_of_a_composed_tile_has_a_payload_and_an_argument() -> None:
    plan = hopper(make(spec_file("h100_bf16_128x160")).plan)
    of_b = [payload for payload in plan.stage.payloads if payload.tensor == "b"]
    assert [(payload.part, payload.elements) for payload in of_b] == [(0, 128 * 64), (1, 32 * 64)]
    assert [argument.part for argument in plan.stage.arguments if argument.tensor == "b"] == [None, 1]
    assert [buffer.part for buffer in plan.resources.of("b")] == [None, 1]
    assert plan.loads("b") == sum(payload.loads for payload in of_b)
