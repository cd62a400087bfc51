"""Programs whose own threads use torch: each has the CPU in place of the GPU."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from modules import module_file
from torch import Tensor

from gemmgen.module import import_generated
from gluonsim import Result, gpu_of_target
from gluonsim.programs.pretended import pretended

pytestmark = pytest.mark.simulator


def test_a_module_that_allocates_in_a_thread_of_its_own_is_simulated() -> None:
    module = import_generated(module_file("h100_bf16_rows16_split2"))
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, 512, generator=generator).bfloat16() for rows in (16, 128))
    results: list[Result] = []
    with pretended(gpu_of_target("h100"), results.append):
        d = module.matmul(a.cuda(), b.cuda().T)
    assert [result.findings for result in results] == [()]
    torch.testing.assert_close(d.double(), a.double() @ b.double().T, rtol=1e-2, atol=5e-2)


def test_a_thread_has_the_gpu_for_as_long_as_the_program_is_simulated() -> None:
    made: list[Tensor] = []
    thread = Thread(target=lambda: made.append(torch.ones(3, device="cuda")))
    with pretended(gpu_of_target("h100"), lambda _: None):
        thread.start()
        thread.join()
        assert made[0].is_cuda
    assert not made[0].is_cuda
    assert Thread.run.__qualname__ == "Thread.run"
