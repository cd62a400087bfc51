"""integrations: the product of rows and a packed weight of integers, as servers call it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from modules import module_file
from simulated import signs
from stored_weights import K, Kernels, N, weight_in

from gemmgen.integrations.operator import kernels as remembered
from gemmgen.integrations.packed_product import PackedProduct
from gemmgen.module import import_generated

PLAIN = "bf16_1x128"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("integers"))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = dict(remembered)
    yield
    remembered.clear()
    remembered.update(before)


@pytest.mark.parametrize("scale_format", [PLAIN, "bf16_1x64", "bf16_1x32", "bf16_int8", "fp16_int8"])
def test_kernels_multiply_by_a_packed_weight(scale_format: str, kernels: Kernels) -> None:
    few, many = (kernels.on_the_cpu(scale_format, rows=rows) for rows in (16, 32))
    product, weight = PackedProduct(many, few_rows={16: few}), weight_in(scale_format)
    packed = product.pack(weight)
    for rows in (16, 17):
        x = signs(rows, K).to(product.dtype)
        assert torch.equal(product(x, packed), (x.double() @ weight.numbers().T).to(product.dtype))
    assert (few.calls, many.calls) == ([(16, K)], [(17, K)])
    assert str(product) == f"{few.__name__}, {many.__name__} for up to [16, {2**31 - 1}] rows"


def test_kernels_that_are_no_product_of_integers_are_refused(kernels: Kernels) -> None:
    plain = kernels.module(PLAIN)
    refused: list[tuple[Any, dict[int, Any], str]] = [
        (import_generated(module_file("h100_bf16")), {}, "h100_bf16 packs no weight"),
        (kernels.module("mxfp4"), {}, "h100_mxfp4_rows16 packs weights of e2m1, and this is for integers"),
        (kernels.module("bf16_e4m3"), {}, "packs weights of e4m3, and this is for integers"),
        (plain, {16: kernels.module("bf16_int8")}, "a layer has its weight in one format"),
        (kernels.module(PLAIN, "column_bias"), {}, "adds column_bias, and a server adds the bias itself"),
        (plain, {16: kernels.module("bf16_1x64")}, "a layer has its weight in one format"),
        (plain, {0: plain}, "a key of few_rows must be a number of rows from 1 on, found 0"),
    ]
    for kernel, few, message in refused:
        with pytest.raises(ValueError, match=message):
            PackedProduct(kernel, few_rows=few)


@pytest.mark.parametrize("scale_format", [PLAIN, "bf16_1x64", "bf16_1x32", "bf16_zero_1x128", "bf16_int8"])
def test_generated_kernels_say_which_weights_they_take(scale_format: str, kernels: Kernels) -> None:
    few, many = (kernels.module(scale_format, rows=rows) for rows in (16, 32))
    product = PackedProduct(many, few_rows={4: few})
    assert product.why_not(N, K) == ""
    assert product.why_not(64, 192) == ""
    assert product.why_not(96, K) == "N must be a multiple of 64, found 96"
    assert product.why_not(N, 416).startswith("a and b must have the same K, a multiple of 64, found 416")
    assert PackedProduct(kernels.on_the_cpu(scale_format)).why_not(96, K) == ""  # it cannot be asked
