"""pack: compiled kernels that the driver launches, on a driver that there is not (`fake_libcuda.py`).

The parameters of a launch are compared with those that Triton's own launcher passes for the same tensors.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from fake_libcuda import Encoded, FakeLibcuda, Launched, TensorMap
from modules import module_file, spec_file
from torch import Tensor

from gemmgen import packing, triton_api
from gemmgen.library import choose
from gemmgen.library.assemble import assemble
from gemmgen.library.sources import read
from gemmgen.lower import Lowered
from gemmgen.module import import_generated
from gemmgen.packing import Pack

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
Tensors = dict[str, Tensor]


def zeros(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.zeros(shape, dtype=dtype).as_subclass(Cuda)


def plain(dtype: torch.dtype = BF16, out: torch.dtype = BF16, m: int = 200, n: int = 136) -> Tensors:
    """Return A, B as the transposed view of its rows, and D."""
    k = 128
    b = torch.zeros(n, k, dtype=dtype).T.as_subclass(Cuda)
    return {"a": zeros(m, k, dtype=dtype), "b": b, "out": zeros(m, n, dtype=out)}


def with_bias() -> Tensors:
    return {**plain(), "column_bias": zeros(136)}


def with_c() -> Tensors:
    return {**plain(), "c": zeros(200, 136), "column_bias": zeros(136)}


def grouped() -> Tensors:
    b = torch.zeros(3, 136, 128, dtype=BF16).mT.as_subclass(Cuda)
    return {**plain(), "b": b, "offs": torch.tensor([70, 70, 200], dtype=torch.int32).as_subclass(Cuda)}


def by_blocks() -> Tensors:
    a_scale = torch.zeros(1, 200).T.as_subclass(Cuda)
    return {**plain(E4M3), "a_scale": a_scale, "b_scale": torch.zeros(2, 4)[:, :1].as_subclass(Cuda)}


def packed_scales() -> Tensors:
    scale = torch.float8_e8m0fnu
    made = {name: zeros(1, 2, 1, 2, 256, dtype=torch.uint8) for name in ("a_scale", "b_scale")}
    views = {name: tensor.view(scale) for name, tensor in made.items()}
    return {**plain(E4M3), **views}


CALLS: dict[str, Callable[[], Tensors]] = {
    "h100_bf16": plain,
    "h100_bf16_cluster2x1": plain,
    "h100_bf16_split8_parallel": plain,
    "h100_bf16_split8_bias": with_bias,
    "h100_bf16_residual": with_c,
    "h100_bf16_grouped": grouped,
    "h100_e4m3_blockwise": by_blocks,
    "h100_tf32": lambda: plain(torch.float32, torch.float32),
    "b200_mxfp8": packed_scales,
}
"""Modules with a call of each: clusters, two kernels, a workspace, C, groups, scales, TMA that rounds."""
MEMORY = {"partials_ptr", "counters_ptr"}


@cache
def members() -> dict[str, packing.PackedModule]:
    """Compile all modules, once in each process."""
    return {stem: member for stem in CALLS for member in packing.compiled(spec_file(stem))}


@cache
def folder() -> Path:
    """Write a pack of all modules, and return the folder of its package."""
    directory = Path(mkdtemp(prefix="gemmgen-pack-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return packing.write(packing.pack_of("pack_for_tests", [*members().values()]), directory).folder


def sizes_of(stem: str) -> dict[str, list[int]]:
    """Return the bytes of each parameter of a module's kernels."""
    kernels = members()[stem].kernels
    return {each.facts.entry: [parameter.bytes for parameter in each.facts.parameters] for each in kernels}


class Loaded(SimpleNamespace):
    """A packed module with the driver that it launches by."""

    stem: str
    module: Any
    launcher: Any
    cuda: FakeLibcuda

    def call(self, tensors: Tensors) -> Tensor:
        """Call the module's `matmul`."""
        given = dict(tensors)
        return self.module.matmul(given.pop("a"), given.pop("b"), **given)

    @property
    def encodings(self) -> int:
        """The number of tensor maps that were encoded."""
        return self.cuda.log.count("cuTensorMapEncodeTiled")


Load = Callable[..., Loaded]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return the function that imports a packed module on a GPU that is not there."""

    def loaded(stem: str, at: Path | None = None, **settings: Any) -> Loaded:
        on_a_fake_gpu(monkeypatch, (10, 0) if stem.startswith("b200") else (9, 0))
        place = at or folder()
        monkeypatch.setattr(sys, "path", [str(place.parent), *sys.path])
        forget(place.name)
        module = importlib.import_module(f"{place.name}.{stem}")
        launcher = importlib.import_module(f"{place.name}.gemmgen_driver")
        cuda = FakeLibcuda(sizes_of(stem), **settings)
        monkeypatch.setattr(launcher, "open_library", lambda: cuda)
        return Loaded(stem=stem, module=module, launcher=launcher, cuda=cuda)

    yield loaded
    forget("pack_for_tests")


def forget(package: str) -> None:
    """Let a package be imported anew."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


# --- what Triton passes


def descriptors_of(lowered: Lowered | packing.PackedModule, ttgir: bytes) -> list[dict[str, Any]]:
    """Return Triton's metadata of a kernel's descriptors, in order."""
    ir, nvidia = triton_api.binding("ir"), triton_api.binding("nvidia")
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.ttgir"
        path.write_bytes(ttgir)
        return ir.parse_mlir_module(str(path), context).get_tensordesc_metadata()


def triton_launches(
    stem: str, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, list[Any]]]:
    """Return the grid and the parameters of each launch of the generated module, as Triton passes them."""
    from triton.backends.nvidia import driver  # pyright: ignore[reportMissingTypeStubs]

    module, launched = import_generated(module_file(stem)), list[tuple[int, list[Any]]]()
    launch_into(module, lambda programs, arguments: launched.append((programs, arguments)))
    given = dict(tensors)
    module.matmul(given.pop("a"), given.pop("b"), **given)
    utils = cast(Any, driver).triton.runtime.driver.active.utils
    monkeypatch.setattr(utils, "fill_tma_descriptor_tiled", encoded_by_triton, raising=False)
    ttgir = packing.lowered_of(members()[stem].product).artifacts["ttgir"]
    maps = iter(descriptors_of(members()[stem], ttgir))

    def passed(argument: Any) -> list[Any]:
        if isinstance(argument, Tensor):
            return [argument.data_ptr()]
        if isinstance(argument, int):
            return [argument]
        return cast(Any, driver).make_tensordesc_arg(argument, next(maps), None)

    return [
        (programs, [*(each for argument in arguments for each in passed(argument)), 0, 0])
        for programs, arguments in launched
    ]


def encoded_by_triton(
    address: int,
    swizzle: int,
    element_bytes: int,
    element_type: int,
    box: Sequence[int],
    shape: Sequence[int],
    strides: Sequence[int],
    padding: int,
) -> TensorMap:
    """Return the tensor map that Triton's driver.c makes of these arguments."""
    in_bytes = tuple(stride * element_bytes for stride in strides[-2::-1])
    extents, rank = tuple(shape[::-1]), len(box)
    steps = element_bytes, *in_bytes
    last = sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True))
    encoded = Encoded(element_type, extents, in_bytes, tuple(box[::-1]), (1,) * rank, 0, swizzle, 2, padding)
    return TensorMap(address, encoded, last + 1 >= 128 * 1024)


@pytest.mark.parametrize("stem", CALLS)
def test_a_launch_has_what_tritons_own_launcher_passes(
    stem: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, tensors = load(stem), CALLS[stem]()
    assert pack.call(tensors) is tensors["out"]
    expected = triton_launches(stem, tensors, monkeypatch)
    kernels, module = members()[stem].kernels, import_generated(module_file(stem))
    options = [module.LAUNCH_OPTIONS, getattr(module, "REDUCTION_OPTIONS", {})]
    assert [launch.entry for launch in pack.cuda.launches] == [kernel.facts.entry for kernel in kernels]
    for launch, kernel, (programs, parameters), passed in zip(
        pack.cuda.launches, kernels, expected, options, strict=False
    ):
        own = {n for n, argument in enumerate(flat(kernel.facts.arguments)) if argument.name in MEMORY}
        assert without(launch.parameters, own) == without(parameters, own)
        ctas = passed.get("num_ctas", 1)
        assert (launch.grid, launch.stream) == ((programs * ctas, 1, 1), 7)
        of_cluster = {4: (ctas, 1, 1), 5: (1, 0, 0)} if ctas > 1 else {}
        assert launch.attributes == {**of_cluster, **({6: (1, 0, 0)} if passed.get("launch_pdl") else {})}
        assert launch.block == (kernel.facts.threads, 1, 1)
        assert launch.smem_bytes == kernel.facts.smem_bytes


def flat(arguments: Sequence[Any]) -> list[Any]:
    """Return the argument of each parameter."""
    return [argument for argument in arguments for _ in argument.parameters]


def without(parameters: Sequence[Any], left_out: set[int]) -> list[Any]:
    """Return parameters but those of memory for sums, which each module makes for itself."""
    return [each for number, each in enumerate(parameters) if number not in left_out]


# --- calls like an earlier one


@pytest.mark.parametrize("stem", CALLS)
def test_a_second_call_at_other_addresses_encodes_nothing_and_has_its_own_addresses(
    stem: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, kept = load(stem), [CALLS[stem]()]
    pack.call(kept[0])
    encodings, launches = pack.encodings, len(pack.cuda.launches)
    kept.append(CALLS[stem]())
    assert pack.call(kept[1]) is kept[1]["out"]
    assert pack.encodings == encodings
    kernels = members()[stem].kernels
    again = pack.cuda.launches[launches:]
    for launch, kernel, (_, parameters) in zip(
        again, kernels, triton_launches(stem, kept[1], monkeypatch), strict=True
    ):
        own = {n for n, argument in enumerate(flat(kernel.facts.arguments)) if argument.name in MEMORY}
        assert without(launch.parameters, own) == without(parameters, own)
    first = pack.cuda.launches[:launches]
    assert [replace(each, parameters=()) for each in again] == [
        replace(each, parameters=()) for each in first
    ]


def test_a_call_without_out_makes_a_d_in_rows_of_whole_units(load: Load) -> None:
    pack, kept = load("h100_bf16"), list[Tensor]()
    for _ in range(3):
        kept.append(pack.call({name: each for name, each in plain(n=133).items() if name != "out"}))
    assert pack.encodings == 3
    assert [(each.shape, each.stride()) for each in kept] == [((200, 133), (136, 1))] * 3
    assert [launch.parameters[10].address for launch in pack.cuda.launches] == [d.data_ptr() for d in kept]


def test_other_sizes_strides_and_modes_get_parameters_of_their_own(load: Load) -> None:
    pack = load("h100_bf16")
    padded = {**plain(), "a": zeros(200, 256)[:, :128]}
    for tensors in (plain(), plain(m=100), padded):
        pack.call(tensors)
        pack.call(tensors)
    assert pack.encodings == 9
    with torch.no_grad():
        pack.call(plain())
    assert pack.encodings == 12


def misaligned(tensors: Tensors) -> Tensors:
    return {**tensors, "a": zeros(200 * 128 + 1)[1:].view(200, 128)}


def in_a(tensors: Tensors) -> Tensors:
    memory = zeros(200 * 136)
    return {**tensors, "a": memory[: 200 * 128].view(200, 128), "out": memory.view(200, 136)}


def needing_gradients(tensors: Tensors) -> Tensors:
    return {**tensors, "a": zeros(200, 128).requires_grad_()}


def elsewhere(tensors: Tensors) -> Tensors:
    return {**tensors, "a": torch.zeros(200, 128, dtype=BF16)}


def of_another_type(tensors: Tensors) -> Tensors:
    return {**tensors, "a": zeros(200, 128, dtype=torch.float16)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (misaligned, "a must start at a multiple of 16 bytes, found 2 bytes past one"),
        (in_a, "out must share no memory with a, which is read while out is written"),
        (needing_gradients, r"a must not require grad \(no backward\): detach it"),
        (elsewhere, "a must be on a CUDA device, found cpu"),
        (of_another_type, "a must be a tensor of torch.bfloat16, found torch.float16"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_call_like_a_known_one_is_refused_as_the_first_would_be(
    change: Callable[[Tensors], Tensors], message: str, load: Load
) -> None:
    pack, tensors = load("h100_bf16"), plain()
    pack.call(tensors)
    with pytest.raises((TypeError, ValueError), match=message):
        pack.call(change(tensors))
    assert len(pack.cuda.launches) == 1


def test_a_negated_view_is_refused_in_a_call_like_a_known_one(load: Load) -> None:
    """Torch makes such a view of an imaginary part, which is of fp16 or fp32."""
    pack, tensors = load("h100_tf32"), CALLS["h100_tf32"]()
    pack.call(tensors)
    negated = cast(Any, torch)._neg_view(tensors["a"])
    with pytest.raises(ValueError, match="a must hold its own values, found a negated view"):
        pack.call({**tensors, "a": negated})
    assert len(pack.cuda.launches) == 1


def test_a_known_call_writes_d_over_c_and_d_into_a_slice_beside_c(load: Load) -> None:
    pack, tensors = load("h100_bf16_residual"), with_c()
    over = {**tensors, "out": tensors["c"]}
    wide = zeros(200, 512)
    beside = {**tensors, "c": wide[:, :136], "out": wide[:, 256 : 256 + 136]}
    for call in (over, beside):
        pack.call(call)
        encodings = pack.encodings
        pack.call(call)
        assert pack.encodings == encodings
    # D in other rows of C's memory is neither.
    memory = zeros(201, 136)
    pack.call({**tensors, "c": memory[:200]})
    with pytest.raises(ValueError, match="out must share no memory with c"):
        pack.call({**tensors, "c": memory[:200], "out": memory[1:]})


def test_autograd_learns_of_each_write(load: Load) -> None:
    pack, tensors = load("h100_bf16"), plain()
    versions = [pack.call(tensors)._version for _ in range(3)]  # pyright: ignore[reportPrivateUsage]
    assert versions == [1, 2, 3]


def test_parameters_that_are_in_use_are_not_changed(load: Load) -> None:
    """A signal's handler may call the module while a call of the same thread puts its addresses in place."""
    pack, first, outer, inner = load("h100_bf16"), plain(), plain(), plain()
    pack.call(first)
    replace_address = pack.launcher.driver().replace_address
    calls = iter([lambda: pack.call(inner)])

    def interrupted(place: int, address: int) -> int:
        done = replace_address(place, address)
        next(calls, lambda: None)()
        return done

    pack.launcher.driver().replace_address = interrupted
    pack.call(outer)
    addresses = [[launch.parameters[n].address for n in (0, 5, 10)] for launch in pack.cuda.launches]
    assert addresses == [
        [tensors[name].data_ptr() for name in ("a", "b", "out")] for tensors in (first, inner, outer)
    ]


def test_a_launch_that_fails_leaves_no_parameters_behind(load: Load) -> None:
    pack, tensors = load("h100_bf16"), plain()
    pack.call(tensors)
    pack.cuda.failing["cuLaunchKernelEx"] = 700
    words = "cuLaunchKernelEx: the driver reports 700, an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match=words):
        pack.call(tensors)
    pack.cuda.failing.clear()
    pack.call(tensors)
    assert (len(pack.cuda.launches), pack.encodings) == (2, 6)


def test_eight_threads_launch_each_with_their_own_tensors(load: Load) -> None:
    pack, calls, threads = load("h100_bf16"), 40, 8
    tensors = [[plain(m=64 + 8 * (number % 2)) for number in range(calls)] for _ in range(threads)]
    gate, passed = threading.Barrier(threads), dict[int, list[list[int]]]()

    def work(mine: list[Tensors]) -> None:
        gate.wait()
        for each in mine:
            pack.call(each)
        passed[threading.get_ident()] = [
            [each[name].data_ptr() for name in ("a", "b", "out")] for each in mine
        ]

    running = [threading.Thread(target=work, args=(mine,)) for mine in tensors]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    found: dict[int, list[list[int]]] = {}
    for launch in pack.cuda.launches:
        addresses = [launch.parameters[number].address for number in (0, 5, 10)]
        found.setdefault(launch.thread, []).append(addresses)
    assert found == passed
    assert pack.cuda.log.count("cuModuleLoadData") == 1
    assert pack.encodings == threads * 2 * 3


def test_a_thread_without_a_context_gets_the_gpus_own(load: Load) -> None:
    pack = load("h100_bf16", context=None)
    pack.call(plain())
    assert (pack.cuda.context, len(pack.cuda.launches)) == (0, 1)


# --- memory for sums


def sums_of(launch: Launched) -> int:
    """Return the address of the sums of a split-K launch, whose last pointers are those of its memory."""
    return launch.parameters[-4]


def test_calls_of_a_stream_share_memory_for_sums_and_a_graph_has_its_own(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, tensors = load("h100_bf16_split8_bias"), with_bias()
    pack.call(tensors)
    pack.call(tensors)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made: list[Tensor] = []
    allocate = pack.module.call.workspaces.make_tensors

    def noted(*extents: Any) -> Any:
        made.extend(found := allocate(*extents))
        return found

    monkeypatch.setattr(pack.module.call.workspaces, "make_tensors", noted)
    pack.call(tensors)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    pack.call(tensors)
    first, again, captured, after = map(sums_of, pack.cuda.launches)
    assert first == again == after
    assert captured == made[0].data_ptr() != first
    assert pack.encodings == 4


@pytest.mark.parametrize("missing", [(), ("cuStreamGetCaptureInfo_v2",)])
def test_graphs_have_counters_by_the_numbers_of_their_captures(
    load: Load, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, tensors = load("h100_bf16_split8_bias", missing=missing), with_bias()
    pack.call(tensors)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    zeros: Callable[..., Tensor] = torch.zeros
    cleared: list[Tensor] = []

    def noted(*shape: Any, **keywords: Any) -> Tensor:
        made = zeros(*shape, **keywords)
        cleared.extend([] if made.is_meta else [made])
        return made

    monkeypatch.setattr(torch, "zeros", noted)
    for pack.cuda.capture in (5, 5, 6):
        pack.call(tensors)
    counters = [launch.parameters[-3] for launch in pack.cuda.launches]
    assert len({*counters}) == (4 if missing else 3)
    assert len(cleared) == (3 if missing else 0)
    pack.cuda.capture = None  # the capture was invalidated
    pack.call(tensors)
    assert pack.cuda.launches[-1].parameters[-3] == cleared[-1].data_ptr()


def test_a_callers_workspace_is_passed_on(load: Load) -> None:
    pack, tensors = load("h100_bf16_split8_bias"), with_bias()
    for _ in range(2):
        mine = pack.module.make_workspace(200, 136, torch.device("cuda", 0))
        workspace = {"workspace": mine}
        pack.call({**tensors, **cast("Tensors", workspace)})
        assert pack.cuda.launches[-1].parameters[-4:-2] == tuple(each.data_ptr() for each in mine)


# --- libraries


@cache
def library() -> Pack:
    """Return the pack of a library of two kernels, of which the planner's rule chooses one."""
    found = read([spec_file("h100_bf16"), spec_file("h100_bf16_cluster2x1")])
    made = assemble("packed_library", found, choose(found))
    return packing.pack_of(made.name, [*map(packing.compiled_member, made.members)], made)


def test_a_packed_library_chooses_and_launches_its_kernels(load: Load, tmp_path: Path) -> None:
    at = packing.write(library(), tmp_path).folder
    pack = load("h100_bf16", at)
    package = importlib.import_module("packed_library")
    tensors = plain(m=256, n=512)
    assert package.matmul(**tensors) is tensors["out"]
    chosen = package.choose(256, 512, 128).kernel
    (launch,) = pack.cuda.launches
    ctas = {"h100_bf16": 1, "h100_bf16_cluster2x1": 2}[chosen]
    assert launch.attributes.get(4, (1, 1, 1)) == (ctas, 1, 1)
    assert package.matmul(**tensors) is tensors["out"]
    assert (len(pack.cuda.launches), pack.encodings) == (2, 3)
    forget("packed_library")


def test_a_packed_library_has_its_operator_in_the_packs_namespace(load: Load, tmp_path: Path) -> None:
    load("h100_bf16", packing.write(library(), tmp_path).folder)
    package = importlib.import_module("packed_library")
    operator = getattr(torch.ops, library().namespace).packed_library
    assert package.OPERATOR is operator
    a, b = (tensor.as_subclass(Tensor).to("meta") for tensor in list(plain().values())[:2])
    assert operator(a, b).shape == (200, 136)
    assert "Needs torch alone." in str(package.__doc__)
    forget("packed_library")


# --- what cannot run


def copy_of_the_pack(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder(), tmp_path / "spoilt_pack"))


def missing_cubin(at: Path) -> str:
    (at / "h100_bf16.cubin").unlink()
    return r"h100_bf16.cubin cannot be read, No such file or directory: install the pack again"


def cut_cubin(at: Path) -> str:
    (at / "h100_bf16.cubin").write_bytes((at / "h100_bf16.cubin").read_bytes()[:-1])
    return r"h100_bf16.cubin is not the machine code that this pack was made with: install it again"


def foreign_cubin(at: Path) -> str:
    (at / "h100_bf16.cubin").write_bytes((at / "h100_bf16_grouped.cubin").read_bytes())
    return r"h100_bf16.cubin is not the machine code that this pack was made with: install it again"


def other_format(at: Path) -> str:
    text = (at / "h100_bf16.json").read_text()
    (at / "h100_bf16.json").write_text(text.replace('"format": 1', '"format": 2'))
    return r"h100_bf16.json has format 2, and this launcher reads format 1: install the pack again"


def cut_facts(at: Path) -> str:
    text = (at / "h100_bf16.json").read_text()
    (at / "h100_bf16.json").write_text(text[: len(text) // 2])
    return r"h100_bf16.json has no facts of kernels, JSONDecodeError.*: install the pack again"


def missing_facts(at: Path) -> str:
    (at / "h100_bf16.json").unlink()
    return r"h100_bf16.json has no facts of kernels, FileNotFoundError.*: install the pack again"


def facts_of_another_kernel(at: Path) -> str:
    text = (at / "h100_bf16.json").read_text()
    (at / "h100_bf16.json").write_text(text.replace('"matmul_kernel": {', '"other_kernel": {'))
    return r"h100_bf16.json has no facts of matmul_kernel: install the pack again"


def scratch_memory(at: Path) -> str:
    text = (at / "h100_bf16.json").read_text()
    (at / "h100_bf16.json").write_text(text.replace('"scratch_bytes": 0', '"scratch_bytes": 64'))
    return r"matmul_kernel needs scratch memory of Triton, which a pack does not have"


@pytest.mark.parametrize(
    "spoil",
    [
        *(missing_cubin, cut_cubin, foreign_cubin, other_format, cut_facts, missing_facts),
        *(facts_of_another_kernel, scratch_memory),
    ],
    ids=lambda function: function.__name__,
)
def test_a_spoilt_pack_says_so_in_a_sentence_and_launches_nothing(
    spoil: Callable[[Path], str], tmp_path: Path, load: Load
) -> None:
    at = copy_of_the_pack(tmp_path)
    message = spoil(at)
    pack = load("h100_bf16", at)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message) as error:
            pack.call(plain())
        assert "\n" not in str(error.value)
    assert pack.cuda.launches == []
    forget("spoilt_pack")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"version": 12_040},
            (
                "h100_bf16.cubin needs a driver for CUDA 13.0 or newer, found one for 12.4: install a newer "
                "driver, or make the pack with --ptxas of an older CUDA"
            ),
        ),
        (
            {"missing": ("cuTensorMapReplaceAddress",)},
            "libcuda.so.1 has no cuTensorMapReplaceAddress: install a newer driver",
        ),
        (
            {"failing": {"cuModuleLoadData": 209}},
            "cuModuleLoadData: the driver reports 209, an error that it has no text for",
        ),
    ],
    ids=("old", "older", "foreign"),
)
def test_a_driver_that_cannot_load_a_pack_is_named(
    settings: dict[str, Any], message: str, load: Load
) -> None:
    pack = load("h100_bf16", **settings)
    with pytest.raises(RuntimeError) as error:
        pack.call(plain())
    assert str(error.value) == message
    assert pack.cuda.launches == []


def test_a_machine_without_a_driver_is_told(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = load("h100_bf16")
    opened = importlib.import_module(f"{folder().name}.gemmgen_driver").__dict__["ctypes"]

    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.undo()
    on_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(opened, "PyDLL", fail)
    with pytest.raises(RuntimeError, match=r"^libcuda\.so\.1 cannot be loaded: libcuda\.so\.1: cannot open"):
        pack.call(plain())


def test_another_gpu_is_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = load("h100_bf16")
    on_a_fake_gpu(monkeypatch, (12, 0))
    with pytest.raises(ValueError, match=r"this kernel needs capability \(9, 0\), found NVIDIA X: \(12, 0\)"):
        pack.call(plain())
    assert pack.cuda.launches == []


# --- the operator


def test_a_module_is_traced_by_its_operator_in_the_packs_namespace(load: Load) -> None:
    pack = load("h100_bf16_grouped")
    package = sys.modules[folder().name]
    operator = getattr(torch.ops, package.NAMESPACE).h100_bf16_grouped
    tensors = {name: each.as_subclass(Tensor).to("meta") for name, each in grouped().items() if name != "out"}
    assert operator(*tensors.values()).shape == (200, 136)
    a, b = tensors.pop("a"), tensors.pop("b")
    assert pack.module.matmul(a, b, **tensors).shape == (200, 136)


def test_two_versions_of_a_pack_live_in_one_process(load: Load, tmp_path: Path) -> None:
    first = load("h100_bf16")
    other = packing.pack_of("pack_for_tests", [members()["h100_bf16"]])
    written = packing.write(other, tmp_path)
    namespaces = sys.modules[folder().name].__dict__["NAMESPACE"], other.namespace
    assert namespaces[0] != namespaces[1]
    second = load("h100_bf16", written.folder)
    operators = [getattr(torch.ops, namespace).h100_bf16 for namespace in namespaces]
    for pack, operator in zip((first, second), operators, strict=True):
        tensors = plain()
        operator(tensors["a"], tensors["b"], out=tensors["out"])
        assert [launch.parameters[10].address for launch in pack.cuda.launches] == [tensors["out"].data_ptr()]
