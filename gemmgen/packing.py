"""Packs: kernels that travel compiled, in a package that needs torch alone, and in a wheel of it.

A pack has a module for each spec, and for the gradients of its backward: the host side, the facts of its
kernels as JSON, their machine code, and the spec. All modules share gemmgen_launch.py, which checks tensors,
and gemmgen_driver.py, which launches.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Final

from gemmgen import __version__, triton_api
from gemmgen.build import lowered_of, settle
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.rendering import sides_of
from gemmgen.files import read_text
from gemmgen.launch_facts import CompiledKernel, code_differences
from gemmgen.launcher_file import launcher_texts
from gemmgen.library.assemble import Library, Member
from gemmgen.library.manifest import spec_file
from gemmgen.library.texts import choosing
from gemmgen.lower import Lowered
from gemmgen.plan.exportable import refusals_of_packs
from gemmgen.plan.rule import counted
from gemmgen.product import Product, load, write_files
from gemmgen.render import render_pack, render_packed
from gemmgen.spec.module_names import module_name_problem

FORMAT: Final = 1
"""The format of the facts, which the launcher compares with its own."""
MANIFEST: Final = "pack.json"
"""The file of a pack that lists all others."""
HUB_NAME: Final = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
"""A name of a repository of the hub."""
HUB_VARIANT: Final = "build/torch-cuda"
"""The folder of a repository of the hub with files for any torch that has CUDA."""
HUB_METADATA: Final = "metadata.json"
OLDEST_DRIVERS: Final = {90: 12_000, 100: 12_080}
"""The oldest driver that knows the GPUs of a compute capability and all functions of the launcher, as the
driver counts releases of CUDA."""


# --- one module


@dataclass(frozen=True)
class PackedModule:
    """A module of a pack with its compiled kernels."""

    product: Product
    spec: str
    """The text of the spec."""
    kernels: tuple[CompiledKernel, ...]
    assembler: tuple[int, int]
    """The release of CUDA whose ptxas made the machine code."""

    @property
    def stem(self) -> str:
        """The name of the module."""
        return self.product.source.stem

    @property
    def title(self) -> str:
        """The title of the spec."""
        return self.product.plan.request.title

    @property
    def target(self) -> str:
        """The architecture of the machine code: ``sm_90a``."""
        return self.product.plan.architecture.name

    @property
    def driver(self) -> int:
        """The oldest driver that loads the machine code, as the driver counts: 12080 for CUDA 12.8.

        A driver loads what any assembler of its major release has made.
        """
        oldest = OLDEST_DRIVERS[self.product.plan.architecture.compute_capability]
        return max(oldest, self.assembler[0] * 1000)

    @property
    def cubins(self) -> dict[str, bytes]:
        """The machine code by the names of files: that of a second kernel has a suffix of its own."""
        suffixes = ("", ".reduction")
        names = (f"{self.stem}{suffix}.cubin" for suffix in suffixes)
        return {name: kernel.cubin for name, kernel in zip(names, self.kernels, strict=False)}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of the kernels, as the launcher reads them."""
        kernels: dict[str, Any] = {}
        for (cubin, code), kernel in zip(self.cubins.items(), self.kernels, strict=True):
            facts = kernel.facts
            found = {"cubin": cubin, "sha256": _sha256(code), "driver": self.driver}
            kernels[facts.entry] = {**facts.as_dict(), **found}
        return {
            "format": FORMAT,
            "gemmgen": __version__,
            "target": self.target,
            "compiler": f"Triton {triton_api.found_version()}",
            "assembler": "CUDA {}.{}".format(*self.assembler),
            "spec_sha256": self.product.source.sha256,
            "kernels": kernels,
        }


def compiled(spec: Path) -> tuple[PackedModule, ...]:
    """Compile a spec's module, and the modules of its gradients, for a pack; `spec` is a file, not stdin.

    Raises:
        GemmgenError: A stage refuses the spec, no pack can have such a kernel, or the facts differ from the
            machine code.
    """
    settled = settle(load(spec), _packable)
    texts = (read_text(spec), *(gradient.spec for gradient in settled.product.gradients))
    made = zip(settled.product.each, texts, settled.results, strict=True)
    return tuple(
        PackedModule(product, text, lowered.kernels, release) for product, text, (lowered, release) in made
    )


def compiled_member(member: Member) -> PackedModule:
    """Compile a kernel of a library for a pack; raises GemmgenError as `compiled` does."""
    lowered, release = _packable(member.product)
    return PackedModule(member.product, member.spec, lowered.kernels, release)


def _packable(product: Product) -> tuple[Lowered, tuple[int, int]]:
    """Compile a module that a pack can have; return it with the release of the assembler."""
    source = product.source
    if found := tuple(refusals_of_packs(product.plan)):
        raise GemmgenError(violation.diagnosed(source) for violation in found)
    lowered = lowered_of(product)
    for kernel in lowered.kernels:
        if kernel.facts.scratch_bytes:
            message = f"{kernel.facts.entry} needs scratch memory of Triton, which a pack does not have"
            raise GemmgenError([Diagnostic(source.path, "pack-scratch", message)])
        if differences := [*code_differences(kernel.facts, kernel.ptx)]:
            raise GemmgenError(Diagnostic(source.path, "plan-differs", each) for each in differences)
    return lowered, triton_api.assembler_release(product.plan.architecture.compute_capability)


# --- all modules


@dataclass(frozen=True)
class Pack:
    """A package of compiled kernels."""

    name: str
    members: tuple[PackedModule, ...]
    library: Library | None = None
    """The library whose kernels these are; None for a pack of specs."""

    @cached_property
    def digest(self) -> str:
        """A digest in eight digits: of the launchers, and of the facts, which have digests of the code."""
        facts = [member.facts for member in self.members]
        texts = [self.name, *launcher_texts().values(), json.dumps(facts, sort_keys=True)]
        texts += choosing(self.library).values() if self.library else []
        return _sha256("\0".join(texts).encode())[:8]

    @property
    def release(self) -> str:
        """The version of gemmgen."""
        return __version__

    @property
    def version(self) -> str:
        """The version of the package: that of gemmgen, and the digest as its local part."""
        return f"{__version__}+{self.digest}"

    @property
    def namespace(self) -> str:
        """The namespace of the operators in torch: two versions of a pack in a process have their own."""
        return f"{self.name}_{self.digest}"

    @property
    def targets(self) -> str:
        """The architectures of the machine code."""
        return " and ".join(sorted({member.target for member in self.members}))

    @property
    def driver(self) -> int:
        """The oldest driver that loads the machine code of all modules, as the driver counts."""
        return max(member.driver for member in self.members)

    @property
    def driver_text(self) -> str:
        """The release of CUDA of that driver: ``12.8``."""
        return f"{self.driver // 1000}.{self.driver % 1000 // 10}"

    @property
    def wheel(self) -> str:
        """The name of the wheel."""
        return f"{self.name}-{self.version}-py3-none-any.whl"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The files of the package by their names."""
        texts = {"__init__.py": render_pack(self), **launcher_texts()}
        if self.library:
            texts = choosing(self.library, self.namespace)
        files = {name: text.encode() for name, text in texts.items()}
        for member in self.members:
            source = member.product.source
            module = render_packed(
                member.product.plan,
                sides_of,
                tuple(kernel.facts.entry for kernel in member.kernels),
                spec_name=source.name,
                spec_sha256=source.sha256,
                namespace=self.namespace,
            )
            files[spec_file(member.stem)] = member.spec.encode()
            files[f"{member.stem}.py"] = module.encode()
            files[f"{member.stem}.json"] = f"{json.dumps(member.facts, indent=1)}\n".encode()
            files |= member.cubins
        digests = {name: _sha256(data) for name, data in sorted(files.items())}
        manifest = {"format": FORMAT, "name": self.name, "version": self.version, "sha256": digests}
        return {**files, MANIFEST: f"{json.dumps(manifest, indent=1)}\n".encode()}

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "name": self.name,
            "version": self.version,
            "namespace": self.namespace,
            "driver": self.driver_text,
            "kernels": {member.stem: member.facts for member in self.members},
        }

    def __str__(self) -> str:
        """Return the pack in a line."""
        kernels = sum(len(member.kernels) for member in self.members)
        modules = counted(len(self.members), "module")
        return f"{modules}, {counted(kernels, 'kernel')} for {self.targets}"


def pack_of(name: str, members: Sequence[PackedModule], library: Library | None = None) -> Pack:
    """Return the pack of modules, or of a library by its kernels.

    Raises:
        GemmgenError: No package can have the name (``pack-name``), or two modules have one name
            (``duplicate-module``).
    """
    if problem := module_name_problem(name):
        raise GemmgenError([Diagnostic("", "pack-name", f"--name {name} {problem}")])
    stems = [member.stem for member in members]
    for stem in sorted({stem for stem in stems if stems.count(stem) > 1}):
        message = f"two specs have the module {stem}: rename one, or make two packs"
        raise GemmgenError([Diagnostic("", "duplicate-module", message)])
    return Pack(name, tuple(members), library)


# --- on the disk


@dataclass(frozen=True)
class Written:
    """A pack on the disk."""

    folder: Path
    wheel: Path

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {"folder": self.folder.as_posix(), "wheel": self.wheel.as_posix()}


def write(pack: Pack, directory: Path) -> Written:
    """Write a pack's package and its wheel below a directory, without the files of an earlier one.

    Raises:
        GemmgenError: The directory cannot be written, or has something else of the package's name
            (``foreign-file``).
    """
    folder, wheel = directory / pack.name, directory / pack.wheel
    _replace_files(folder, pack.files, {wheel: wheel_of(pack)})
    return Written(folder, wheel)


def hub_name(pack: Pack) -> str:
    """Return a pack's name for the hub; raises GemmgenError (``hub-name``) if the hub takes no such name."""
    name = pack.name.replace("_", "-")
    if not HUB_NAME.fullmatch(name):
        message = "the hub takes names of small letters, digits and dashes that begin with a letter"
        raise GemmgenError([Diagnostic(pack.name, "hub-name", message)])
    return name


def write_for_hub(pack: Pack, directory: Path) -> Path:
    """Write a pack as a repository of Hugging Face's kernels hub; return the folder of its one variant.

    ``kernels.get_kernel`` imports the folder by its path, under the name that the metadata have as ``id``.
    Two versions can be in one process, because the pack imports its files relatively, and its operators have
    a namespace of their own.

    Raises:
        GemmgenError: The hub takes no such name (``hub-name``), or the directory has something else
            (``foreign-file``).
    """
    folder = directory / HUB_VARIANT
    metadata: dict[str, object] = {
        "name": hub_name(pack),
        "id": f"_{pack.name}_cuda_{pack.digest}",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    _replace_files(folder, {**pack.files, HUB_METADATA: f"{json.dumps(metadata, indent=1)}\n".encode()})
    return folder


def _replace_files(
    folder: Path, files: Mapping[str, bytes], beside: Mapping[Path, bytes] | None = None
) -> None:
    """Write a pack's files into its folder and beside it; remove there what an earlier pack left."""
    before = _files_of(folder)
    write_files({folder / name: data for name, data in files.items()} | dict(beside or {}))
    for name in sorted(before - files.keys()):
        (folder / name).unlink(missing_ok=True)


def _files_of(folder: Path) -> set[str]:
    """Return the files that the manifest of a pack lists; empty if there is no folder, or nothing in it."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return set()
    if folder.is_symlink() or not (folder / MANIFEST).is_file():
        message = "exists and is not a pack made by gemmgen: move it, or choose another --out"
        raise GemmgenError([Diagnostic(folder.as_posix(), "foreign-file", message)])
    places = ((name, PurePosixPath(name)) for name in digests_of(folder))
    return {name for name, place in places if not place.is_absolute() and ".." not in place.parts}


def digests_of(folder: Path) -> Mapping[str, str]:
    """Return the digests of a pack's files by their names.

    Raises:
        GemmgenError: The manifest is missing, or is not one of this format (``bad-pack``).
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"it has format {manifest['format']!r}, and this is gemmgen's format {FORMAT}")
        return {str(name): str(digest) for name, digest in manifest["sha256"].items()}
    except OSError:
        inner = [each.parent.as_posix() for each in sorted(folder.glob(f"*/{MANIFEST}"))]
        message = f"is not the folder of a pack: it has no {MANIFEST}"
        message += f"; did you mean {' or '.join(inner)}?" if inner else ""
        raise GemmgenError([Diagnostic(folder.as_posix(), "bad-pack", message)]) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"is not the manifest of a pack: {error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-pack", message)]) from error


def faults_of(folder: Path) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each file of a pack that is missing, changed or foreign."""
    digests = digests_of(folder)
    for path in sorted(folder.glob("*.*")):
        if path.name not in digests and path.name not in (MANIFEST, HUB_METADATA):
            yield Diagnostic(path.as_posix(), "foreign-file", "is not a file of this pack: move it")
    for name, digest in digests.items():
        path = folder / name
        try:
            is_changed = _sha256(path.read_bytes()) != digest
        except OSError as error:
            yield Diagnostic(path.as_posix(), "missing-file", f"cannot be read: {error.strerror}")
            continue
        if is_changed:
            message = "is not as it was packed: pack it again, or install it again"
            yield Diagnostic(path.as_posix(), "changed-file", message)


def checked(folder: Path) -> dict[str, bool | None]:
    """Check the numbers of a pack's modules on the GPU of this machine, as `gemmgen test` does.

    The value of a module is None if it was not run: there is no GPU, or its kernels are for another one.
    """
    import torch

    from gemmgen.verify import verify

    found: dict[str, bool | None] = {}
    package = imported(folder)
    for stem in package.KERNELS:
        module, source = import_module(f"{package.__name__}.{stem}"), load(folder / spec_file(stem))
        wanted, found[stem] = module.COMPUTES["capability"], None
        if torch.cuda.is_available() and torch.cuda.get_device_capability() == wanted:
            deterministic = module.COMPUTES.get("deterministic", True)
            found[stem] = verify(module, source, deterministic=deterministic).passed
    return found


def imported(folder: Path) -> ModuleType:
    """Import the package of a pack from its folder."""
    parent = str(folder.resolve().parent)
    sys.path.insert(0, parent)
    try:
        return import_module(folder.resolve().name)
    finally:
        sys.path.remove(parent)


# --- the wheel

METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Matmul kernels, compiled for {targets} by gemmgen {release}
Requires-Python: >=3.11
Requires-Dist: torch>=2.11
"""
WHEEL = """Wheel-Version: 1.0
Generator: gemmgen {release}
Root-Is-Purelib: true
Tag: py3-none-any
"""


def wheel_of(pack: Pack) -> bytes:
    """Return the wheel of a pack: the same bytes for the same pack."""
    info = f"{pack.name}-{pack.version}.dist-info"
    values = {"name": pack.name, "version": pack.version, "targets": pack.targets, "release": __version__}
    files = {f"{pack.name}/{name}": data for name, data in pack.files.items()}
    files |= {f"{info}/METADATA": METADATA.format(**values).encode()}
    files |= {f"{info}/WHEEL": WHEEL.format(**values).encode()}
    rows = (f"{name},sha256={_urlsafe(data)},{len(data)}\n" for name, data in files.items())
    files |= {f"{info}/RECORD": "".join((*rows, f"{info}/RECORD,,\n")).encode()}
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980, so that the bytes depend on the pack alone
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, data)
    return memory.getvalue()


def _urlsafe(data: bytes) -> str:
    """Return the SHA-256 of data as the RECORD of a wheel has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
