"""The memory that a call writes: torch's rules for `out`, and the modes that forbid a kernel.

Without a GPU the wrapper is whole: CPU tensors claim to be on a GPU, and the launch is recorded. The tests
marked `gpu` run the same rules on a Hopper GPU.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver
from hypothesis import given
from hypothesis import strategies as st
from modules import ROOT, module_file
from torch import Tensor

from gemmgen.cli import main
from gemmgen.integrations import Linear, can_implement
from gemmgen.module import import_generated
from gemmgen_launch import Place, overlap

BF16 = torch.bfloat16
STEMS = (
    "h100_bf16",  # plain
    "h100_bf16_rows8",  # swap-AB
    "h100_bf16_128x144",  # B is described once for each part of a tile
    "h100_bf16_misaligned",  # copies what TMA cannot address
    "h100_bf16_split8_atomic",  # a workspace
    "h100_bf16_split8_parallel",  # a second kernel
)
"""Modules of D = A @ B in bf16 whose wrappers differ."""


@dataclass
class Fake:
    """A module on a driver that is not there."""

    module: ModuleType
    driver: FakeDriver

    def __call__(self, *inputs: Tensor, **keywords: Any) -> Tensor:
        return self.module.matmul(*inputs, **keywords)

    @property
    def launches(self) -> int:
        return len(self.driver.jit) + len(self.driver.direct)


Made = Callable[[str], Fake]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Made:
    def made(stem: str) -> Fake:
        on_a_fake_gpu(monkeypatch)
        module = import_generated(module_file(stem))
        return Fake(module, on_a_fake_driver(module, monkeypatch))

    return made


# --- memory that is also read


@pytest.mark.parametrize("stem", STEMS)
def test_an_out_that_is_an_input_is_refused(fake: Made, stem: str) -> None:
    call, a, b = fake(stem), cuda(64, 64), cuda(64, 64).T
    for out, name in ((a, "a"), (b.T, "b"), (a.view(64, 64)[:, :], "a")):
        with pytest.raises(ValueError, match=f"^out must share no memory with {name}, which is read while"):
            call(a, b, out=out)
    assert call.launches == 0


@pytest.mark.parametrize("stem", STEMS)
def test_an_out_that_overlaps_an_input_is_refused_after_one_that_does_not(fake: Made, stem: str) -> None:
    call, buffer, b = fake(stem), cuda(128, 64), cuda(64, 64).T
    for _ in range(2):
        call(buffer[:64], b, out=buffer[64:])
    assert call.launches >= 2
    before = call.launches
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^out must share no memory with a"):
            call(buffer[:64], b, out=buffer[56:120])
    assert call.launches == before


def test_an_out_beside_an_input_in_the_same_rows_is_taken(fake: Made) -> None:
    call, buffer, b = fake("h100_bf16"), cuda(32, 256), cuda(64, 64).T
    call(buffer[:, :64], b, out=buffer[:, 64:128])
    call(buffer[:, 128:192], b, out=buffer[:, 64:128])
    with pytest.raises(ValueError, match=r"^out must share no memory with a"):
        call(buffer[:, :64], b, out=buffer[:, 56:120])
    assert call.launches == 2


def test_an_out_is_c_or_has_nothing_of_it(fake: Made) -> None:
    """Each element of C is read by the thread that writes the same element of D."""
    call, a, b, bias = fake("h100_bf16_residual"), cuda(32, 64), cuda(64, 64).T, cuda(64)
    buffer = cuda(64, 64)
    for _ in range(2):
        call(a, b, c=buffer[:32], column_bias=bias, out=buffer[:32])
    assert call.launches == 2
    with pytest.raises(ValueError, match=r"^out must share no memory with c"):
        call(a, b, c=buffer[:32], column_bias=bias, out=buffer[8:40])
    with pytest.raises(ValueError, match=r"^out must share no memory with column_bias"):
        call(a, b, c=cuda(32, 64), column_bias=buffer[3], out=buffer[:32])
    row = cuda(1, 64)
    with pytest.raises(ValueError, match=r"^out must share no memory with column_bias"):
        call(a[:1], b, c=row, column_bias=row[0], out=row)


def test_an_out_that_overlaps_the_scales_is_refused(fake: Made) -> None:
    call, e8m0 = fake("b200_mxfp8"), torch.float8_e8m0fnu
    a, b = cuda(128, 128, dtype=torch.float8_e4m3fn), cuda(128, 128, dtype=torch.float8_e4m3fn).T
    dtype = call.module.ARGUMENTS["out"]["dtype"]
    out = cuda(128, 128, dtype=dtype)
    packed = out.view(torch.uint8).flatten()[: 2 * 256].view(e8m0).view(1, 1, 1, 2, 256)
    with pytest.raises(ValueError, match=r"^out must share no memory with b_scale"):
        call(a, b, a_scale=cuda(1, 1, 1, 2, 256, dtype=torch.uint8).view(e8m0), b_scale=packed, out=out)


def test_a_misaligned_input_is_copied_before_out_is_written(fake: Made) -> None:
    """The kernel reads the copy, so that memory of the input may be overwritten."""
    call, b = fake("h100_bf16_misaligned"), cuda(64, 64).T
    storage = cuda(64 * 64 + 8).flatten()
    a = storage[1 : 1 + 64 * 64].view(64, 64)

    def copy(_: object) -> None:
        pass

    call.module.call.copy = copy
    call(a, b, out=storage[: 64 * 64].view(64, 64))
    assert call.launches == 1


def test_can_implement_says_the_same_of_out(fake: Made) -> None:
    call, a, b = fake("h100_bf16"), cuda(64, 64), cuda(64, 64).T
    assert can_implement(call.module, a, b, out=cuda(64, 64)) == (True, "")
    for out in (a, b.T):
        with pytest.raises(ValueError, match="share no memory") as refused:
            call(a, b, out=out)
        assert can_implement(call.module, a, b, out=out) == (False, str(refused.value))


place = st.tuples(
    st.integers(1, 60), st.integers(1, 5), st.sampled_from((8, 12, 16)), st.integers(1, 8)
)  # an address, rows, bytes from row to row, bytes of a row


@given(place, place)
def test_two_places_overlap_if_they_have_a_byte_in_common(
    out: tuple[int, int, int, int], read: tuple[int, int, int, int]
) -> None:
    def bytes_of(at: tuple[int, int, int, int]) -> set[int]:
        address, rows, pitch, width = at
        return {address + row * pitch + byte for row in range(rows) for byte in range(width)}

    refused = overlap(Place(*read), Place(*out))
    common = bool(bytes_of(out) & bytes_of(read))
    # Rows at two distances that interlock without a common byte are refused: nobody lays matrices out so.
    interlocked = out[1] > 1 and read[1] > 1 and out[2] != read[2]
    assert refused == common or (refused and interlocked)


# --- autograd


@pytest.mark.parametrize("stem", STEMS)
def test_a_call_counts_as_one_write_of_out_however_it_is_launched(fake: Made, stem: str) -> None:
    call, a, b, out = fake(stem), cuda(32, 64), cuda(64, 64).T, cuda(32, 64)
    versions = [out._version]
    for _ in range(3):
        call(a, b, out=out)
        versions.append(out._version)
    assert call.driver.jit
    assert call.driver.direct or "misaligned" in stem
    assert versions == sorted({*versions})


def test_the_operator_of_a_module_counts_its_writes(fake: Made) -> None:
    call, a, b, out = fake("h100_bf16"), cuda(32, 64), cuda(64, 64).T, cuda(32, 64)
    before = out._version
    torch.ops.gemmgen.h100_bf16.out(a, b, out=out)
    assert call.launches == 1
    assert out._version > before


def test_a_buffer_that_is_written_again_before_its_backward_is_an_error(fake: Made) -> None:
    call, a, b, buffer = fake("h100_bf16"), cuda(32, 64), cuda(64, 64).T, cuda(32, 64)
    scale = torch.ones(64, dtype=BF16, requires_grad=True)
    product = call(a, b, out=buffer).as_subclass(Tensor) * scale
    call(a, b, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product.sum())


@pytest.mark.parametrize("stem", STEMS)
def test_an_inference_tensor_is_written_in_inference_mode_alone(fake: Made, stem: str) -> None:
    call, a, b = fake(stem), cuda(32, 64), cuda(64, 64).T
    with torch.inference_mode():
        frozen = torch.zeros(32, 64, dtype=BF16).as_subclass(Cuda)
        for _ in range(2):
            call(a, b, out=frozen)
    before = call.launches
    for _ in range(2):
        with (
            torch.no_grad(),
            pytest.raises(
                ValueError, match=r"^out must not be an inference tensor outside of inference mode$"
            ),
        ):
            call(a, b, out=frozen)
    assert call.launches == before


# --- threads


@pytest.mark.parametrize("stem", STEMS)
def test_a_thread_that_calls_cuda_for_the_first_time_has_a_context(fake: Made, stem: str) -> None:
    """No tensor map is made without one; the fake driver refuses as CUDA does."""
    call, b, failed = fake(stem), cuda(64, 64).T, list[BaseException]()
    call(cuda(32, 64), b)

    def work() -> None:
        try:
            call(cuda(40, 64), b)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


# --- sums in any order


@contextmanager
def deterministic(*, warn_only: bool = False) -> Generator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_kernel_of_atomic_sums_is_refused_in_deterministic_mode(fake: Made) -> None:
    call, a, b = fake("h100_bf16_split8_atomic"), cuda(32, 64), cuda(64, 64).T
    for _ in range(2):
        call(a, b)
    before = call.launches
    with deterministic():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^h100_bf16_split8_atomic has no deterministic"):
                call(a, b)
    assert call.launches == before
    call(a, b)
    assert call.launches > before


def test_a_kernel_of_atomic_sums_warns_where_torch_would(fake: Made) -> None:
    call, a, b, out = fake("h100_bf16_split8_atomic"), cuda(32, 64), cuda(64, 64).T, cuda(32, 64)
    with deterministic(warn_only=True):
        for _ in range(3):
            with pytest.warns(UserWarning, match="has no deterministic implementation") as warned:
                call.module.matmul(a, b, out=out)
            assert [each.filename for each in warned] == [__file__]  # the line of the caller
    assert call.launches == 3
    with deterministic(), pytest.raises(RuntimeError, match="has no deterministic implementation"):
        call(a, b, out=out)


def test_a_layer_takes_torchs_own_way_in_deterministic_mode(fake: Made) -> None:
    call = fake("h100_bf16_split8_atomic")
    layer = Linear(64, 64, bias=False, kernel=call.module, dtype=BF16).requires_grad_(False)
    layer.weight = torch.nn.Parameter(cuda(64, 64), requires_grad=False)
    layer(cuda(32, 64))
    before = call.launches
    assert layer.reason == ""
    with deterministic():
        layer(cuda(32, 64))
    assert "has no deterministic implementation" in layer.reason
    assert call.launches == before


def test_another_runtime_error_is_no_refusal() -> None:
    def matmul(*_: object, **__: object) -> Tensor:
        """Return a @ b."""
        raise RuntimeError("CUDA error")

    kernel = SimpleNamespace(matmul=matmul, COMPUTES={"inputs": ("a", "b"), "epilogue": ()})
    layer = Linear(64, 64, bias=False, kernel=kernel).requires_grad_(False)
    with pytest.raises(RuntimeError, match="CUDA error"):
        layer(torch.zeros(4, 64))


@pytest.mark.parametrize("stem", [stem for stem in STEMS if "atomic" not in stem])
def test_every_other_kernel_runs_in_deterministic_mode(fake: Made, stem: str) -> None:
    call, a, b = fake(stem), cuda(32, 64), cuda(64, 64).T
    with deterministic(), warnings.catch_warnings():
        warnings.simplefilter("error")
        call(a, b)
    assert call.launches >= 1


def test_a_library_takes_another_kernel_in_deterministic_mode(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_fake_gpu(monkeypatch)
    where = tmp_path_factory.mktemp("libraries")
    specs = [ROOT / "specs" / f"{stem}.yaml" for stem in ("h100_bf16_split8_atomic", "h100_bf16")]
    sources = [word for spec in specs for word in ("--from", str(spec))]
    monkeypatch.setattr(
        "sys.argv", ["gemmgen", "library", "mixed_orders", *sources, "--out", str(where), "--no-lower"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    monkeypatch.setattr(sys, "path", [str(where), *sys.path])
    mixed_orders: Any = importlib.import_module("mixed_orders")
    few_tiles = (128, 128, 32768)
    assert mixed_orders.choose(*few_tiles).kernel == "h100_bf16_split8_atomic"
    a, b = cuda(128, 64), cuda(64, 128).T
    free = mixed_orders.library.host_for((a, b), None)
    with deterministic():
        assert mixed_orders.choose(*few_tiles).kernel == "h100_bf16"
        ordered = mixed_orders.library.host_for((a, b), None)
        assert ordered.traced.name == "mixed_orders__h100_bf16"
    assert len(mixed_orders.library.chosen) == 2  # the mode is part of the key
    names = ("h100_bf16", "h100_bf16_split8_atomic")
    assert free.traced.name in {f"mixed_orders__{name}" for name in names}


# --- on a GPU

gpu = pytest.mark.gpu


def real(stem: str) -> ModuleType:
    return import_generated(module_file(stem))


def filled(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape, device="cuda").to(BF16)


@gpu
@pytest.mark.parametrize("stem", STEMS)
def test_threads_whose_first_cuda_call_is_a_matmul_compute_on_the_gpu(stem: str) -> None:
    module, a, b = real(stem), filled(96, 128), filled(64, 128).T
    wanted, made, failed = (a.float() @ b.float()).to(BF16), dict[int, Tensor](), list[BaseException]()
    module.matmul(a[:32], b)
    torch.cuda.synchronize()

    def work(rows: int) -> None:
        try:
            made[rows] = module.matmul(a[:rows], b)
        except BaseException as error:
            failed.append(error)

    for rows in (96, 96, 64, 32, 8):  # new shapes, and shapes that are prepared
        thread = threading.Thread(target=work, args=(rows,))
        thread.start()
        thread.join()
        assert not failed
        torch.cuda.synchronize()
        assert torch.equal(made[rows], wanted[:rows])


@gpu
@pytest.mark.parametrize("stem", STEMS)
def test_out_on_the_gpu_is_counted_and_never_an_input(stem: str) -> None:
    module, a, b, out = real(stem), filled(64, 64), filled(64, 64).T, filled(64, 64)
    for _ in range(3):
        before = out._version
        module.matmul(a, b, out=out)
        assert out._version > before
    assert torch.equal(out, (a.float() @ b.float()).to(BF16))
    for wrong in (a, b.T):
        with pytest.raises(ValueError, match=r"^out must share no memory with"):
            module.matmul(a, b, out=wrong)
    with torch.inference_mode():
        frozen = torch.zeros_like(out)
        module.matmul(a, b, out=frozen)
    assert torch.equal(frozen, out)
    with torch.no_grad(), pytest.raises(ValueError, match="inference tensor"):
        module.matmul(a, b, out=frozen)


@gpu
def test_c_is_written_in_place_on_the_gpu() -> None:
    module = real("h100_bf16_residual")
    a, b, bias = filled(700, 256), filled(1000, 256).T, filled(1000)
    c = filled(700, 1000)
    wanted = module.matmul(a, b, c=c, column_bias=bias)
    for _ in range(2):
        written = c.clone()
        assert module.matmul(a, b, c=written, column_bias=bias, out=written) is written
        assert torch.equal(written, wanted)


@gpu
def test_a_gradient_on_the_gpu_is_right_or_an_error() -> None:
    module, a, w, buffer = real("h100_bf16"), filled(64, 64), filled(64, 64), filled(64, 64)
    scale = torch.ones(64, device="cuda", dtype=BF16, requires_grad=True)
    product = module.matmul(a, w.T, out=buffer) * scale
    module.matmul(a, w.T, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@gpu
def test_atomic_sums_on_the_gpu_are_refused_in_deterministic_mode() -> None:
    module, a, b = real("h100_bf16_split8_atomic"), filled(64, 1024), filled(64, 1024).T
    module.matmul(a, b)
    with deterministic():
        with pytest.raises(RuntimeError, match="has no deterministic implementation"):
            module.matmul(a, b)
        assert torch.equal(real("h100_bf16").matmul(a, b), (a.float() @ b.float()).to(BF16))
