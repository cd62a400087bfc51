"""pack: the files of a package and of its wheel, and environments that have torch and no Triton."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from modules import spec_file
from typer.testing import CliRunner

from gemmgen import packing, triton_api
from gemmgen.cli import app, main
from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered
from gemmgen.packing import Pack
from gemmgen.product import Product

STEM = "h100_bf16"
TRACE = """
import importlib.util, sys, warnings
warnings.simplefilter("ignore")  # torch says that it has no NumPy
import torch
from gemmgen_pack import NAMESPACE, h100_bf16
assert "triton" not in sys.modules
a, weight = (torch.empty(rows, 128, dtype=torch.bfloat16, device="meta") for rows in (64, 136))
assert h100_bf16.matmul(a, weight.T).shape == (64, 136)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return h100_bf16.matmul(x, self.weight.T)

graph = torch.export.export(Layer(), (a,)).graph
print([str(node.target) for node in graph.nodes if NAMESPACE in str(node.target)], NAMESPACE)
"""
"""A program that traces a packed module on tensors without memory."""

HUB = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from kernels import get_local_kernel

loaded = [get_local_kernel(Path(folder)) for folder in sys.argv[1:]]
a = torch.empty(256, 128, dtype=torch.bfloat16, device="meta")
for kernel in loaded:
    (name,) = kernel.KERNELS
    module = getattr(kernel, name)
    assert module.matmul(a, a.T).shape == (256, 256)
    assert not hasattr(kernel, "another")
    print(kernel.__name__, getattr(getattr(torch.ops, kernel.NAMESPACE), name).default)
assert "gemmgen_launch" not in sys.modules and "triton" not in sys.modules
"""
"""A program that loads repositories of the hub by their paths."""


@cache
def pack() -> Pack:
    return packing.pack_of("gemmgen_pack", packing.compiled(spec_file(STEM)))


def files_in(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def traced(ran: subprocess.CompletedProcess[str]) -> None:
    """Fail unless the program has traced a call of the operator."""
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [f"['{pack().namespace}.{STEM}.default']", pack().namespace]


# --- files


def test_a_package_has_the_files_that_its_manifest_lists(tmp_path: Path) -> None:
    written = packing.write(pack(), tmp_path)
    names = files_in(written.folder)
    shared = {"__init__.py", "gemmgen_driver.py", "gemmgen_launch.py", "pack.json"}
    assert names == {*shared, *(f"{STEM}.{end}" for end in ("py", "json", "cubin")), f"specs/{STEM}.yaml"}
    assert packing.digests_of(written.folder).keys() == names - {"pack.json"}
    assert [*packing.faults_of(written.folder)] == []
    assert {path.name for path in tmp_path.iterdir()} == {"gemmgen_pack", written.wheel.name}


def test_a_second_pack_takes_the_place_of_the_first_without_its_files(tmp_path: Path) -> None:
    first = packing.write(pack(), tmp_path)
    assert packing.write(other(), tmp_path).folder == first.folder
    assert sorted(first.folder.glob("*.cubin")) == [first.folder / "other.cubin"]
    assert [*packing.faults_of(first.folder)] == []


def test_missing_and_changed_files_are_named(tmp_path: Path) -> None:
    folder = packing.write(pack(), tmp_path).folder
    (folder / f"{STEM}.py").unlink()
    (folder / f"{STEM}.cubin").write_bytes(b"")
    found = {(Path(each.path).name, each.code) for each in packing.faults_of(folder)}
    assert found == {(f"{STEM}.py", "missing-file"), (f"{STEM}.cubin", "changed-file")}
    (folder / "mine.py").write_text("")
    assert [each.code for each in packing.faults_of(folder) if each.path.endswith("mine.py")] == [
        "foreign-file"
    ]


def test_the_folder_of_packs_is_no_pack(tmp_path: Path) -> None:
    folder = packing.write(pack(), tmp_path).folder
    with pytest.raises(GemmgenError, match=r"it has no pack\.json; did you mean .*gemmgen_pack\?$") as raised:
        packing.digests_of(tmp_path)
    assert folder.as_posix() in str(raised.value)
    with pytest.raises(GemmgenError, match=r"it has no pack\.json$"):
        packing.digests_of(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "sha256": 3}'])
def test_a_manifest_of_another_format_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "pack.json").write_text(text)
    with pytest.raises(GemmgenError, match=r"pack\.json: error\[bad-pack\]: is not the manifest of a pack"):
        packing.digests_of(tmp_path)


def test_a_folder_that_is_no_pack_stays(tmp_path: Path) -> None:
    (tmp_path / "gemmgen_pack").mkdir()
    (tmp_path / "gemmgen_pack" / "mine.py").write_text("")
    with pytest.raises(GemmgenError, match=r"foreign-file.*is not a pack made by gemmgen"):
        packing.write(pack(), tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["mine.py"]


def test_a_wheel_has_the_package_and_is_the_same_each_time(tmp_path: Path) -> None:
    written = packing.write(pack(), tmp_path)
    assert written.wheel.name == f"gemmgen_pack-{pack().version}-py3-none-any.whl"
    assert written.wheel.read_bytes() == packing.wheel_of(pack())
    with zipfile.ZipFile(written.wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = f"gemmgen_pack-{pack().version}.dist-info"
    record = files.pop(f"{info}/RECORD").decode()
    rows = [line.split(",") for line in record.splitlines()]
    assert rows.pop() == [f"{info}/RECORD", "", ""]
    for name, digest, size in rows:
        sha256 = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={sha256}", len(files[name]))
    assert {name for name, *_ in rows} == {*files}
    packed = {name.partition("/")[2] for name in files if name.startswith("gemmgen_pack/")}
    assert packed == files_in(written.folder)
    assert b"Requires-Dist: torch>=" in files[f"{info}/METADATA"]


def test_the_facts_say_where_they_come_from(tmp_path: Path) -> None:
    facts = json.loads((packing.write(pack(), tmp_path).folder / f"{STEM}.json").read_text())
    release = triton_api.assembler_release(90)
    assert (facts["target"], facts["assembler"]) == ("sm_90a", "CUDA {}.{}".format(*release))
    assert facts["compiler"] == f"Triton {triton_api.found_version()}"
    assert facts["kernels"]["matmul_kernel"]["driver"] == release[0] * 1000


@pytest.mark.parametrize(
    ("capability", "assembler", "driver"),
    [(90, (12, 9), "12.0"), (90, (13, 4), "13.0"), (100, (12, 9), "12.8"), (100, (13, 4), "13.0")],
)
def test_a_driver_of_the_same_major_release_loads_a_pack(
    capability: int, assembler: tuple[int, int], driver: str
) -> None:
    (member,) = pack().members
    architecture = replace(member.product.plan.architecture, compute_capability=capability)
    plan = member.product.plan
    gpu = replace(plan.gpu, architecture=architecture)
    plan = replace(plan, request=replace(plan.request, gpu=gpu))
    other = replace(member, product=replace(member.product, plan=plan), assembler=assembler)
    assert Pack("gemmgen_pack", (other,)).driver_text == driver


# --- what is refused


def test_a_pack_takes_no_kernel_that_copies() -> None:
    with pytest.raises(GemmgenError) as error:
        packing.compiled(spec_file("h100_bf16_misaligned"))
    (found,) = error.value.diagnostics
    assert (found.code, found.field) == ("pack-misaligned", "operands.misaligned")
    limit = "copy, but a pack has no kernel that copies matrices of any type"
    assert found.message == f"{limit}; leave it out, or use the Python module"


def test_a_kernel_that_needs_scratch_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = packing.lowered_of(pack().members[0].product)
    (kernel,) = lowered.kernels
    other = replace(kernel, facts=replace(kernel.facts, scratch_bytes=128))

    def with_scratch(_: Product) -> Lowered:
        return replace(lowered, kernels=(other,))

    monkeypatch.setattr(packing, "lowered_of", with_scratch)
    message = r"error\[pack-scratch\]: matmul_kernel needs scratch memory of Triton"
    with pytest.raises(GemmgenError, match=message):
        packing.compiled(spec_file(STEM))


@pytest.mark.parametrize("name", ["a-b", "class", "torch", "", "triton"])
def test_a_name_that_no_package_can_have_is_refused(name: str) -> None:
    with pytest.raises(GemmgenError, match=r"error\[pack-name\]: --name"):
        packing.pack_of(name, pack().members)


def test_two_modules_of_one_name_are_refused() -> None:
    with pytest.raises(GemmgenError, match=r"duplicate-module.*two specs have the module h100_bf16"):
        packing.pack_of("gemmgen_pack", pack().members * 2)


@pytest.mark.parametrize("ptxas", ["/bin/ls", "/no/such/file"])
def test_another_program_is_no_ptxas(ptxas: str) -> None:
    with (
        pytest.raises(GemmgenError, match=r"error\[no-ptxas\]"),
        triton_api.assembled_by(Path(ptxas)),
    ):
        pass


def test_another_assembler_makes_the_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton brings two: that for GPUs up to Hopper has an older release, which older drivers load."""
    monkeypatch.delenv(triton_api.FUSION_VARIABLE, raising=False)
    ptxas = triton_api.library_directory() / "backends" / "nvidia" / "bin" / "ptxas"
    with triton_api.assembled_by(ptxas):
        (member,) = packing.compiled(spec_file(STEM))
    assert member.assembler != triton_api.assembler_release(90)
    assert member.assembler[0] == 12
    assert member.driver == 12_000
    assert member.cubins != pack().members[0].cubins


# --- the command


def test_the_command_says_what_it_wrote_and_which_driver_is_needed(tmp_path: Path) -> None:
    command = ["pack", str(spec_file(STEM)), "--out", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert ran.stdout.splitlines() == [
        f"wrote {tmp_path}/gemmgen_pack: 1 module, 1 kernel for sm_90a",
        f"wrote {tmp_path}/{pack().wheel}",
    ]
    assert f"it needs torch, and a driver for CUDA {pack().driver_text} or newer" in ran.stderr
    checked = CliRunner().invoke(app, ["pack", "--check", f"{tmp_path}/gemmgen_pack"])
    assert checked.exit_code == 0
    (tmp_path / "gemmgen_pack" / f"{STEM}.cubin").unlink()
    checked = CliRunner().invoke(app, ["pack", "--check", f"{tmp_path}/gemmgen_pack"])
    assert (checked.exit_code, "error[missing-file]: cannot be read" in checked.stderr) == (1, True)


def test_the_command_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["gemmgen", "pack", str(spec_file(STEM)), "--out", str(tmp_path), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    told = json.loads(capsys.readouterr().out)["results"]
    assert (told["namespace"], told["driver"]) == (pack().namespace, pack().driver_text)
    assert told["kernels"][STEM] == json.loads(json.dumps(pack().members[0].facts))


# --- where it runs


@pytest.mark.nightly
# --- the hub


def other() -> Pack:
    """A pack of the same name, with other files."""
    (member,) = pack().members
    source = replace(member.product.source, stem="other")
    return Pack("gemmgen_pack", (replace(member, product=replace(member.product, source=source)),))


def test_the_hub_loads_two_versions_of_a_pack_into_one_process(tmp_path: Path) -> None:
    """By kernels' own function, and by the path of the variant: no CUDA of this machine chooses it."""
    packs = pack(), other()
    folders = [packing.write_for_hub(each, tmp_path / each.digest) for each in packs]
    ran = subprocess.run(
        [sys.executable, "-c", HUB, *map(str, folders)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"_gemmgen_pack_cuda_{each.digest} {each.namespace}.{each.members[0].stem}.default" for each in packs
    ]


def test_a_repository_of_the_hub_is_checked_and_written_again_as_a_pack_is(tmp_path: Path) -> None:
    folder = packing.write_for_hub(pack(), tmp_path)
    assert [*packing.faults_of(folder)] == []
    assert packing.write_for_hub(other(), tmp_path) == folder
    assert sorted(folder.glob("*.cubin")) == [folder / "other.cubin"]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["name"], metadata["backend"]) == ("gemmgen-pack", {"type": "cuda"})


def test_a_name_that_the_hub_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GemmgenError) as raised:
        packing.write_for_hub(replace(pack(), name="My_pack"), tmp_path)
    assert [each.code for each in raised.value.diagnostics] == ["hub-name"]
    spec, here = str(spec_file(STEM)), str(tmp_path)
    ran = CliRunner().invoke(app, ["pack", spec, "--name", "My_pack", "--out", here, "--hub", here])
    assert ran.exit_code != 0
    assert [*tmp_path.iterdir()] == []


def test_the_command_says_where_the_repository_is(tmp_path: Path) -> None:
    out, hub = tmp_path / "packs", tmp_path / "hub"
    ran = CliRunner().invoke(app, ["pack", str(spec_file(STEM)), "--out", str(out), "--hub", str(hub)])
    assert ran.exit_code == 0, ran.output
    assert f"wrote {hub / packing.HUB_VARIANT}: for kernels.get_kernel" in ran.stdout


# --- environments


def test_a_pack_needs_no_triton_and_writes_nothing(tmp_path: Path) -> None:
    folder = packing.write(pack(), tmp_path).folder
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode & ~0o222)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "triton.py").write_text('raise ImportError("this Triton is another release")')
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(blocked)!r}]\n{TRACE}"
    traced(
        subprocess.run(
            [sys.executable, "-B", "-I", "-c", program], capture_output=True, text=True, check=False
        )
    )
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == before
    for path in (folder, folder / "specs"):
        path.chmod(0o755)


def test_a_wheel_is_installed_beside_a_torch_without_triton_and_traces(tmp_path: Path) -> None:
    """The environment has links to this one's packages, but for Triton and gemmgen."""
    wheel = packing.write(pack(), tmp_path).wheel
    venv.create(tmp_path / "fresh", symlinks=True)
    python = tmp_path / "fresh" / "bin" / "python"
    (packages,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith(("triton", "gemmgen", "gluonsim", "_gemmgen", "__editable__")):
            (packages / path.name).symlink_to(path)
    installing = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--quiet"]
    installed = subprocess.run([*installing, str(wheel)], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    program = f"import importlib.util\nassert importlib.util.find_spec('triton') is None\n{TRACE}"
    traced(subprocess.run([str(python), "-I", "-c", program], capture_output=True, text=True, check=False))
