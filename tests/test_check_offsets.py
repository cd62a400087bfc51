"""Ends of groups that would move tokens to another group, which a test can find."""

from __future__ import annotations

import pytest
import torch
from modules import module_file

from gemmgen.module import import_generated

SCALED, PLAIN, ROWS = "h100_e4m3_blockwise_kgroups", "h100_bf16_wgrad", "h100_e4m3_blockwise_grouped"


@pytest.mark.parametrize(
    ("stem", "offs", "error"),
    [
        (SCALED, [128, 128, 384, 400], ""),
        (SCALED, [0, 256, 400, 400], ""),
        (SCALED, [128, 200, 384, 400], r"offs\[1\] must be 400 or a multiple of 128, found 200"),
        (SCALED, [128, 256, 384, 512], r"offs\[3\] must be from 384 to 400, found 512"),
        (SCALED, [256, 128, 384, 400], r"offs\[1\] must be from 256 to 400, found 128"),
        (SCALED, [-128, 128, 384, 400], r"offs\[0\] must be from 0 to 400, found -128"),
        (PLAIN, [1, 200, 399, 399], ""),
        (PLAIN, [1, 200, 199, 399], r"offs\[2\] must be from 200 to 400, found 199"),
        (ROWS, [1, 200, 399, 399], ""),
        (ROWS, [1, 200, 399, 401], r"offs\[3\] must be from 399 to 400, found 401"),
    ],
)
def test_the_first_wrong_end_is_named(stem: str, offs: list[int], error: str) -> None:
    check = import_generated(module_file(stem)).call.check_offsets
    ends = torch.tensor(offs, dtype=torch.int32)
    if not error:
        check(ends, 400)
        return
    with pytest.raises(ValueError, match=rf"^{error}$"):
        check(ends, 400)


def test_a_module_without_ends_of_groups_says_so() -> None:
    with pytest.raises(ValueError, match=r"^this kernel has no offs$"):
        import_generated(module_file("h100_bf16")).call.check_offsets(torch.zeros(1), 1)
