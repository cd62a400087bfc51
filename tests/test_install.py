"""Installations: pins that fit together, wheels that are whole, an environment made when it must be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any, cast

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ruamel.yaml import YAML

import gemmgen
from gemmgen import api
from gemmgen.errors import GemmgenError, install_advice
from gemmgen.hardware import TRITON
from gemmgen.launcher_file import LAUNCHERS, LIBRARY_FILES

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


PACKAGES = ("gemmgen", "gluonsim")


def requirements(lines: list[str]) -> dict[str, Requirement]:
    return {found.name: found for found in map(Requirement, lines)}


def pins() -> dict[str, str]:
    """The exact versions of constraints.txt, by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


# --- pins


def test_the_pinned_triton_is_the_supported_one() -> None:
    assert list(pins()) == ["triton"]
    assert TRITON.has(pins()["triton"])
    for extra in ("compile", "triton"):
        assert str(requirements(EXTRAS[extra])["triton"]) == TRITON.requirement


def test_development_brings_each_extra() -> None:
    assert requirements(EXTRAS["dev"])["gemmgen"].extras == {"test", "docs"}
    assert requirements(EXTRAS["test"])["gemmgen"].extras == {"triton", "plot", "transformers", "tune"}


def test_the_simulator_needs_what_compiles() -> None:
    assert requirements(EXTRAS["simulate"])["gemmgen"].extras == {"compile"}


def wanted_triton(torch_requirements: list[str]) -> SpecifierSet | None:
    """The Tritons that a torch asks for on Linux; None if it asks for none, as builds for the CPU do."""
    for requirement in map(Requirement, torch_requirements):
        marker = requirement.marker
        if requirement.name == "triton" and (
            not marker or marker.evaluate({"platform_system": "Linux", "sys_platform": "linux"})
        ):
            return requirement.specifier
    return None


def test_the_installed_torch_takes_the_pinned_triton() -> None:
    wanted = wanted_triton(requires("torch") or [])
    assert wanted is None or pins()["triton"] in wanted


def found_by_pip(*requirements: str) -> list[dict[str, Any]]:
    """The metadata of what pip would install for requirements; nothing is installed."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--quiet"]
    command += ["--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    # As a stranger's pip: what this machine's configuration adds or excludes is its own.
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    ran = subprocess.run(
        [*command, *requirements], capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        asked = " ".join(requirements)
        reason = f"pip cannot ask the package index for {asked}: {ran.stderr.strip()[-500:]}"
        # Where CI runs, the index can be reached: a pin that nobody looks at any more would go unnoticed.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return [package["metadata"] for package in json.loads(ran.stdout)["install"]]


def triton_of_torch(specifier: str) -> SpecifierSet | None:
    """The Tritons that the newest torch of a specifier asks for."""
    (metadata,) = found_by_pip("--no-deps", f"torch{specifier}")
    return wanted_triton(metadata["requires_dist"])


def test_the_torch_that_compiles_is_the_one_that_asks_for_the_pinned_triton() -> None:
    assert requirements(EXTRAS["compile"])["torch"].specifier == SpecifierSet(f">={TRITON.torch}")
    own, older = triton_of_torch(f"=={TRITON.torch}.*"), triton_of_torch(f"<{TRITON.torch}")
    assert own is not None
    assert older is not None
    assert pins()["triton"] in own
    assert pins()["triton"] not in older


def test_a_pinned_torch_of_another_release_is_refused_before_pip_asks_for_any(tmp_path: Path) -> None:
    (tmp_path / "pins").write_text("torch==2.13.0\n")
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run"]
    command += ["--no-index", "--no-build-isolation", "--constraint", str(tmp_path / "pins")]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    ran = subprocess.run(
        [*command, f"{ROOT}[compile]"], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 1
    assert (
        f'gemmgen[compile] {gemmgen.__version__} depends on torch>={TRITON.torch}; extra == "compile"\n'
        in ran.stdout
    )
    assert "The user requested (constraint) torch==2.13.0\n" in ran.stdout


@pytest.mark.parametrize(
    ("requirement", "taken"),
    [
        ('triton~=3.9.0; platform_system == "Linux"', True),
        ('triton==3.7.1; platform_system == "Linux"', False),
        ('triton~=3.8.0; platform_system == "Linux"', False),
        ('triton~=3.9.0; platform_system == "Windows"', None),
        ("numpy", None),
    ],
)
def test_a_torch_that_wants_another_triton_would_be_seen(requirement: str, taken: bool | None) -> None:
    wanted = wanted_triton([requirement])
    assert (pins()["triton"] in wanted if wanted else None) == taken


# --- the wheels


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this checkout and both wheels, built without asking the package index."""
    directory = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (sdist,) = directory.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(directory)]
    subprocess.run([*command, str(sdist), str(ROOT / "wheels/gluonsim")], check=True, capture_output=True)
    return directory


def names(wheels: Path, package: str) -> set[str]:
    """The files in the wheel of a package, without the wheel's own."""
    (wheel,) = wheels.glob(f"{package}-*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def required(wheels: Path, package: str) -> list[Requirement]:
    """What the wheel of a package requires."""
    (wheel,) = wheels.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if "Requires-Dist" in line]


INVALID = ROOT / "tests" / "invalid"
"""Of which `gemmgen explain` shows some."""


def test_each_file_of_the_packages_is_in_exactly_one_wheel(wheels: Path) -> None:
    gemmgen_names, gluonsim_names = names(wheels, "gemmgen"), names(wheels, "gluonsim")
    packages = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in [*(ROOT / package).rglob("*.py"), ROOT / package / "py.typed"]
    }
    templates = {
        f"gemmgen/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "templates").rglob("*.j2")
    }
    shown = {f"gemmgen/invalid/{path.relative_to(INVALID).as_posix()}" for path in INVALID.glob("*/*.*")}
    assert gemmgen_names & gluonsim_names == set()
    assert packages <= gemmgen_names | gluonsim_names
    assert templates | shown | {"gemmgen/example.yaml", "gemmgen/rules.md"} <= gemmgen_names
    assert {name.split("/")[0] for name in gemmgen_names} == {"gemmgen", *LAUNCHERS, *LIBRARY_FILES}


def test_the_sdist_has_no_tests_and_no_records(wheels: Path) -> None:
    (sdist,) = wheels.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    files = {"pyproject.toml", "README.md", "LICENSE", ".gitignore", "PKG-INFO"}
    assert tops == {"gemmgen", "gluonsim", "wheels", *files, *LAUNCHERS, *LIBRARY_FILES}


def test_a_base_installation_brings_neither_torch_nor_triton(wheels: Path) -> None:
    found = required(wheels, "gemmgen")
    base = {each.name for each in found if not each.marker or each.marker.evaluate({"extra": ""})}
    compiling = {each.name for each in found if each.marker and each.marker.evaluate({"extra": "compile"})}
    base = {name.replace(".", "-") for name in base}
    assert base == {"pydantic", "jinja2", "ruamel-yaml", "typer", "rich", "gluonsim"}
    assert compiling == {"numpy", "torch", "triton"}  # torch warns without numpy
    assert [each for each in required(wheels, "gluonsim") if not each.marker] == []


def test_gemmgen_requires_gluonsim_of_its_own_version_and_in_a_checkout_the_one_beside_it(
    wheels: Path, tmp_path: Path
) -> None:
    (released,) = (each for each in required(wheels, "gemmgen") if each.name == "gluonsim")
    assert str(released) == f"gluonsim=={gemmgen.__version__}"
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--dry-run"]
    command += ["--ignore-installed", "--no-deps", "--no-index", "--no-build-isolation", "--report", "-"]
    ran = subprocess.run([*command, str(ROOT)], check=True, capture_output=True, text=True, cwd=tmp_path)
    (package,) = json.loads(ran.stdout)["install"]
    found = map(Requirement, package["metadata"]["requires_dist"])
    (own,) = (each for each in found if each.name == "gluonsim")
    # No index is asked for the name: whoever registers it would run code on the machines of users.
    assert own.url == (ROOT / "wheels/gluonsim").as_uri()


WITHOUT_TORCH_AND_TRITON = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
sys.path.insert(0, sys.argv[1])
import gemmgen
assert gemmgen.__file__.startswith(sys.argv[1]), gemmgen.__file__
from gemmgen.cli import main
for line in sys.stdin:
    sys.argv = ["gemmgen", *line.split()]
    print("$", line, end="")
    try:
        main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""

COMMANDS = """\
--version
init specs/mine
plan specs/mine.yaml
plan --candidates 3 --explain specs/mine.yaml
build --no-lower specs/mine.yaml
check
list
schema
doctor
explain smem-capacity
"""


def test_the_installed_wheels_work_without_torch_and_triton(wheels: Path, tmp_path: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "installed")
    (tmp_path / "work").mkdir()
    ran = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_TORCH_AND_TRITON, str(tmp_path / "installed")],
        cwd=tmp_path / "work",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        input=COMMANDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    answers = re.split(r"(?m)^\$ .*\n", ran.stdout)[1:]
    assert len(answers) == len(COMMANDS.splitlines())
    assert all(answers)
    assert (tmp_path / "work" / "generated" / "mine.py").is_file()


# --- beside a torch that has another Triton

CALL = """
import sys, warnings
warnings.simplefilter("ignore")  # torch says that it has no NumPy
import torch, triton
print(triton.__version__, triton.__file__)
import h100_bf16
a, weight = (torch.empty(rows, 128, dtype=torch.bfloat16, device="meta") for rows in (64, 136))
print(*h100_bf16.matmul(a, weight.T).shape)
"""
"""A program that calls a generated module on tensors without memory."""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """An environment with links to this one's packages, but with another Triton than gemmgen's."""
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith(("triton", "gemmgen", "gluonsim", "_gemmgen", "__editable__")):
            (packages / path.name).symlink_to(path)
    (packages / "triton").mkdir()
    (packages / "triton" / "__init__.py").write_text('__version__ = "3.7.1"\n')
    (packages / "triton-3.7.1.dist-info").mkdir()
    (packages / "triton-3.7.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: triton\nVersion: 3.7.1\n"
    )
    return tmp_path / "env" / "bin" / "python"


@pytest.mark.check
def test_triton_in_a_folder_of_its_own_goes_before_that_of_the_environment(
    beside: Path, tmp_path: Path
) -> None:
    """As `pip install --target` lays it out: the package and its metadata."""
    own, module = tmp_path / "triton-3.9", tmp_path / "kernels"
    own.mkdir()
    for path in Path(sysconfig.get_path("purelib")).glob("triton*"):
        (own / path.name).symlink_to(path)
    api.build(ROOT / "specs" / "h100_bf16.yaml", module, lower=False)

    def ran(*command: str, path: list[Path]) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
        return subprocess.run(
            [str(beside), "-B", *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = ran("-c", CALL, path=[module])
    assert "ImportError: this kernel was verified with Triton 3.9 alone, found 3.7.1: " in refused.stderr
    called = ran("-c", CALL, path=[own, module])
    assert called.returncode == 0, called.stderr
    assert called.stdout.splitlines() == [f"{pins()['triton']} {own}/triton/__init__.py", "64 136"]
    # Commands take it too, and so do the processes that compile for them.
    lowering = ("-m", "gemmgen", "lower", str(ROOT / "specs" / "h100_bf16.yaml"))
    refused = ran(*lowering, path=[ROOT])
    assert "found Triton 3.7.1, and this needs Triton 3.9" in refused.stderr
    lowered = ran(*lowering, path=[own, ROOT])
    assert lowered.returncode == 0, lowered.stderr


def test_a_folder_of_its_own_gets_triton_and_nothing_else(tmp_path: Path) -> None:
    found = found_by_pip("--target", str(tmp_path), f"triton=={pins()['triton']}")
    assert [(package["name"], package["version"]) for package in found] == [("triton", pins()["triton"])]


# --- the Python API


def test_importing_gemmgen_imports_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import gemmgen; print(*set(sys.modules) - before)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["gemmgen"]


def test_the_functions_are_imported_without_what_they_need() -> None:
    program = (
        "import sys; from gemmgen import api; "
        "print(*{'torch', 'triton', 'pydantic', 'jinja2', 'typer', 'rich'} & sys.modules.keys())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "\n"


def test_a_program_can_plan_build_and_simulate(tmp_path: Path) -> None:
    spec = api.init(tmp_path / "mine")
    planned = api.plan(spec)
    assert planned.module.startswith(f'"""{planned.plan.request.title}.\n')
    assert planned.ledger.as_text().startswith("kernel for H100 SXM")
    built = api.build(str(spec), tmp_path / "out", lower=False)
    assert built.module.read_text() == planned.module
    assert built.resources is None
    simulation = api.simulate(spec, shape=(128, 128, 128), schedules=0)
    assert simulation.launches
    assert simulation.problems == ()


def test_a_program_gets_the_diagnostics_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GemmgenError) as caught:
        api.plan(tmp_path / "absent.yaml")
    assert [found.code for found in caught.value.diagnostics] == ["file-missing"]
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (api.build, api.simulate):
        with pytest.raises(GemmgenError, match="no-torch"):
            call(tmp_path / "absent.yaml")


# --- the Makefile

PYTHON = """\
#!{shell}
# A Python of version $FAKE_VERSION; its pip notes what it is asked for, and fails if $FAKE_FAILURE is set.
all="$*"
case "$all" in
  *"-m venv"*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "$FAKE_VERSION" > "$3/version" && echo venv >> log;;
  *"-m pip"*) echo "pip ${{all#*install }}$PYTHONDONTWRITEBYTECODE" >> log; test -z "$FAKE_FAILURE";;
  *"< (3, 11)"*) case "$FAKE_VERSION" in 3.[0-9]|3.10) exit 1;; esac;;
  *"import pip"*) test "$(cat .venv/version)" = "$FAKE_VERSION";;
  *print*) echo "$FAKE_VERSION";;
esac
"""


OPTIONS = "--disable-pip-version-check --no-compile"


def installs(extra: str) -> list[str]:
    """What pip is asked for to install gemmgen with an extra."""
    project = f"pip {OPTIONS} --constraint constraints.txt --editable wheels/gluonsim --editable .[{extra}]"
    return [project, *([f"pip {OPTIONS} --no-deps torchtitan==0.3.0"] if extra != "triton" else [])]


INSTALLED = installs("dev")


class Checkout:
    """A copy of what `make setup` reads, with a Python that only notes what is asked of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("Makefile", "pyproject.toml", "wheels/gluonsim/pyproject.toml", "constraints.txt"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
        python = directory / "python"
        python.write_text(PYTHON.format(shell=shutil.which("bash")))
        python.chmod(0o755)

    def make(
        self, *arguments: str, target: str = "setup", version: str = "3.12", failure: bool = False
    ) -> tuple[int, list[str]]:
        """Run make; return its exit code, and what was done."""
        log = self.directory / "log"
        log.unlink(missing_ok=True)
        environment = os.environ | {"FAKE_VERSION": version, "FAKE_FAILURE": "1" if failure else ""}
        environment["PYTHONDONTWRITEBYTECODE"] = " without bytecode"  # which make does not hand on
        for name in ("MAKEFLAGS", "MAKELEVEL", "TORCH", "PYTHON"):
            environment.pop(name, None)
        command = ["make", target, "PYTHON=./python", *arguments]
        ran = subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False
        )
        self.printed = ran.stdout + ran.stderr
        return ran.returncode, log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    directory = tmp_path / "a place with spaces"
    directory.mkdir()
    return Checkout(directory)


def test_an_environment_is_made_once(checkout: Checkout) -> None:
    assert checkout.make() == (0, ["venv", *INSTALLED])
    assert checkout.make() == (0, [])


@pytest.mark.parametrize(("less", "extra"), [("compile-3.12", "triton"), ("test-3.12", "test")])
def test_a_target_installs_what_it_needs_unless_there_is_more(
    checkout: Checkout, less: str, extra: str
) -> None:
    target = f".venv/{less}"
    assert checkout.make(target=target) == (0, ["venv", *installs(extra)])
    assert checkout.make(target=target) == (0, [])
    assert checkout.make() == (0, INSTALLED)
    assert checkout.make(target=target) == (0, [])


def test_what_is_installed_follows_the_project(checkout: Checkout) -> None:
    checkout.make()
    later = (checkout.directory / ".venv" / "dev-3.12").stat().st_mtime + 10
    os.utime(checkout.directory / "constraints.txt", (later, later))
    assert checkout.make() == (0, INSTALLED)


def test_an_environment_of_another_python_is_made_anew(checkout: Checkout) -> None:
    checkout.make()
    assert checkout.make(version="3.13") == (0, ["venv", *INSTALLED])
    assert checkout.make() == (0, ["venv", *INSTALLED])


def test_an_environment_whose_installation_failed_is_made_anew(checkout: Checkout) -> None:
    assert checkout.make(failure=True) == (2, ["venv", INSTALLED[0]])
    assert checkout.make() == (0, ["venv", *INSTALLED])
    assert checkout.make() == (0, [])


def test_an_environment_that_somebody_has_prepared_is_used(checkout: Checkout) -> None:
    prepare = "./python -m venv .venv"
    subprocess.run(
        prepare.split(), cwd=checkout.directory, env=os.environ | {"FAKE_VERSION": "3.12"}, check=True
    )
    assert checkout.make() == (0, INSTALLED)


def test_a_build_of_torch_can_be_chosen(checkout: Checkout) -> None:
    done = ["venv", f"pip {OPTIONS} torch==1 --index-url x", *INSTALLED]
    assert checkout.make("TORCH=torch==1 --index-url x") == (0, done)


def test_a_python_that_is_too_old_is_told(checkout: Checkout) -> None:
    assert checkout.make(version="3.10") == (2, [])
    assert "gemmgen needs Python 3.11 or newer, and ./python is 3.10: make PYTHON=" in checkout.printed


def test_nothing_that_pip_says_is_hidden() -> None:
    for name in ("Makefile", ".ci/run"):
        assert not re.search(r"pip.*(--quiet|-q\b)", (ROOT / name).read_text())


def test_ci_runs_what_everybody_runs() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    commands = re.findall(r"\bmake ([a-z]+)", (ROOT / ".ci/run").read_text())
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands += re.findall(r"\bmake ([a-z]+)", path.read_text())
    assert {"demo", "test", "check", "nightly"} <= set(commands)
    assert set(commands) <= targets


def load(path: str) -> Any:
    return cast(Any, YAML(typ="safe")).load((ROOT / path).read_text())


def test_every_supported_python_is_tested() -> None:
    versions = load(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    classifiers = PYPROJECT["project"]["classifiers"]
    assert versions == [name.rpartition(" ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)]
    assert PYPROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert VERSION in versions


def test_hooks_install_the_versions_of_the_project() -> None:
    hooks: Mapping[str, Any] = {
        hook["id"]: hook for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    }
    (ruff,) = (line for line in EXTRAS["test"] if line.startswith("ruff"))
    assert hooks["ruff"]["additional_dependencies"] == [ruff]
    assert hooks["ruff-format"]["additional_dependencies"] == [ruff]
    assert hooks["generated"]["additional_dependencies"] == PYPROJECT["project"]["dependencies"]
    assert ".venv" not in (ROOT / ".pre-commit-config.yaml").read_text()


BARE = re.compile(r"pip install (?:-U |--upgrade )?['\"]?gemmgen(?![\w./-])")
"""An installation by a name that is on no index: whoever registers it runs code on the machines of users."""


def test_nothing_tells_a_user_to_install_a_name_that_is_on_no_index() -> None:
    told = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    for folder in ("gemmgen", "gluonsim", "templates", ".github"):
        told += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".j2", ".yaml", ".yml", ".md")
        ]
    told += ROOT.glob("gemmgen_*.py")
    assert [path for path in told if BARE.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("pip install gemmgen", True),
        ("pip install 'gemmgen[compile]'", True),
        ("pip install './gemmgen-0.2.0-py3-none-any.whl[compile]'", False),
        ("pip install '.[compile]'", False),
    ],
)
def test_the_bare_form_is_told_from_a_wheel(text: str, bare: bool) -> None:
    assert bool(BARE.search(text)) == bare


def test_the_changelog_has_this_version() -> None:
    assert f"## [{gemmgen.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    assert load("CITATION.cff")["version"] == gemmgen.__version__ == PYPROJECT["project"]["version"]


@pytest.mark.parametrize("extra", ["compile", "plot", "transformers", "tune"])
def test_advice_to_install_names_an_extra_that_exists(extra: str) -> None:
    assert extra in EXTRAS
    assert install_advice(extra) == f"run `pip install '.[{extra}]'` in a checkout of gemmgen"
