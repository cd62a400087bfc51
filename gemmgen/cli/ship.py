"""Commands that write kernels for others' programs: library, export and pack."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gemmgen.cli.drawings import write_pictures
from gemmgen.cli.options import Format, Json, Lowering, Pictures, SarifFile, Specs, refuse_duplicates
from gemmgen.cli.reporting import choose, complain, end, print_json, say, tell
from gemmgen.cli.running import progressing, run_each
from gemmgen.device import require_compiler
from gemmgen.errors import GemmgenError
from gemmgen.launcher_file import PACK_NAME
from gemmgen.library import KERNELS as MOST_KERNELS
from gemmgen.library import assemble, exchange, package
from gemmgen.plan.rule import counted


def library_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|DIR", help="Name of the package; with --check or --refresh its directory."
        ),
    ],
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="A spec, a record of a suite or a tuned table; repeatable."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option("--table", metavar="FILE", help="A table of `gemmgen tune`; the same as --from."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of libraries.")] = Path(
        "libraries"
    ),
    problem: Annotated[
        str,
        typer.Option(
            "--problem",
            metavar="KEY",
            help="The problem, if sources have several: the first digits of its key.",
        ),
    ] = "",
    kernels: Annotated[
        int, typer.Option("--kernels", metavar="N", min=1, help="Most kernels of the library.")
    ] = MOST_KERNELS,
    dependent: Annotated[
        bool,
        typer.Option(
            "--dependent-launch",
            help="Programmatic dependent launch (PDL): start kernels before the previous kernel ends.",
        ),
    ] = False,
    lowering: Lowering = True,
    leave_out: Annotated[
        bool,
        typer.Option("--leave-out", help="Also report how the choice does on N and K that were left out."),
    ] = False,
    configs: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            metavar="DIR",
            help="Also write tables N=…,K=…,device_name=….json for vLLM's Triton kernels.",
        ),
    ] = None,
    checking: Annotated[
        bool, typer.Option("--check", help="Find missing, stale or edited files of a library.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Rewrite the files of a library; keep its choice of kernels.")
    ] = False,
    pictures: Pictures = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Make a package that chooses among kernels by shape."""
    choose(form, sarif)
    from gemmgen import library
    from gemmgen.library import sources as library_sources

    paths = [*(sources or ()), *([table] if table else ())]
    if bool(paths) == (checking or refresh) or (checking and refresh):
        raise typer.BadParameter("give --from, or --check, or --refresh", param_hint="--from")
    if checking:
        _check_library(name, as_json=as_json)
        return
    if lowering:
        require_compiler()
    if refresh:
        made, report = package.read_library(Path(name)), library.SelectionReport()
        out = package.parent_of(Path(name))
    else:
        found = library_sources.read(paths, problem or None)
        complain(GemmgenError(found.warnings))
        choice = library.choose(found, kernels)
        made = assemble.assemble(name, found, choice, dependent=dependent)
        report = library.SelectionReport.of(found, choice, kernels if leave_out else None)
    with progressing("compiling") as progress:
        failed = lowering and run_each(made.members, assemble.lowered, progress, parallel=True)[1]
    if not failed:
        written = package.write(made, out)
        early = sum(member.product.plan.dependent for member in made.members)
        told = (
            [f"{early} of {counted(len(made.members), 'kernel')} with programmatic dependent launch"]
            if dependent
            else []
        )
        told += [f"wrote {configs}: {exchange.write_configs(made, configs)}"] if configs else []
        told += write_pictures((member.product for member in made.members), pictures)
        if as_json:
            print_json({"package": written.as_posix(), **made.as_dict(), **report.as_dict()})
        else:
            say("\n".join([f"wrote {written}: {made}", *report.lines(), *told]))
    end(failed)


def _check_library(name: str, *, as_json: bool) -> None:
    """Print the files of a library that are missing, stale or edited."""
    findings = package.check(Path(name))
    if as_json:
        print_json({f.diagnostic.path: {"state": f.diagnostic.code} for f in findings})
    for finding in findings:
        complain(GemmgenError([finding.diagnostic]))
    if not (findings or as_json):
        say(f"{name}: up to date")
    end(bool(findings))


def export_command(
    specs: Specs,
    aot: Annotated[
        Path, typer.Option("--aot", metavar="DIR", help="Directory for the cubin and its launcher in C.")
    ],
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Write a cubin and its facts in C per spec, and a C launcher."""
    choose(form, sarif)
    require_compiler()
    from gemmgen.build import export
    from gemmgen.triton_api import cuda_include

    refuse_duplicates(specs)
    with progressing("exporting") as progress:
        exported, failed = run_each(specs, partial(export, directory=aot), progress, parallel=True)
    if as_json:
        print_json([item.as_dict() for item in exported])
    elif exported:
        say("\n".join(f"wrote {path}" for item in exported for path in item.files))
        flags = shlex.join(["-isystem", str(cuda_include())])
        tell(f"compile the launcher with `{flags}`, or with the headers of a CUDA toolkit, and link `-ldl`")
    end(failed)


def pack_command(
    specs: Annotated[
        list[Path],
        typer.Argument(
            metavar="SPEC…|DIR", help="Spec files, or a library; with --check the folder of a pack."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of packs.")] = Path("packs"),
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help=f"Name of the package and of its wheel. Default: {PACK_NAME}, or the library's.",
        ),
    ] = "",
    ptxas: Annotated[
        Path | None,
        typer.Option(
            "--ptxas",
            metavar="FILE",
            help="The ptxas that makes the machine code, for drivers older than Triton's own ptxas needs.",
        ),
    ] = None,
    hub: Annotated[
        Path | None,
        typer.Option("--hub", metavar="DIR", help="Also write a repository for Hugging Face's kernels hub."),
    ] = None,
    checking: Annotated[
        bool,
        typer.Option("--check", help="Compare the files of a pack with its manifest; on a GPU, run it too."),
    ] = False,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Make a wheel of compiled kernels that needs torch alone."""
    choose(form, sarif)
    if checking:
        _check_packs(specs, as_json=as_json)
        return
    require_compiler()
    from gemmgen import packing
    from gemmgen.triton_api import assembled_by

    refuse_duplicates(specs)
    made = package.read_library(specs[0]) if len(specs) == 1 and specs[0].is_dir() else None
    with assembled_by(ptxas), progressing("packing") as progress:
        if made:
            members, failed = run_each(made.members, packing.compiled_member, progress, parallel=True)
        else:
            each, failed = run_each(specs, packing.compiled, progress, parallel=True)
            members = [member for of_spec in each for member in of_spec]
    if not failed:
        pack = packing.pack_of(name or (made.name if made else PACK_NAME), members, made)
        if hub:
            packing.hub_name(pack)  # which may refuse, before anything is written
        written = packing.write(pack, out)
        of_hub = packing.write_for_hub(pack, hub) if hub else None
        if as_json:
            told = {"hub": of_hub.as_posix()} if of_hub else {}
            print_json({**written.as_dict(), **told, **pack.as_dict()})
        else:
            say(f"wrote {written.folder}: {pack}\nwrote {written.wheel}")
            if of_hub:
                say(f"wrote {of_hub}: for kernels.get_kernel, after an upload of {hub}")
            tell(f"it needs torch, and a driver for CUDA {pack.driver_text} or newer")
    end(failed)


def _check_packs(folders: list[Path], *, as_json: bool) -> None:
    """Print the files of packs that are missing or changed; on a GPU, also the numbers of each module."""
    from gemmgen import packing

    faults = {folder: [*packing.faults_of(folder)] for folder in folders}
    for diagnostics in filter(None, faults.values()):
        complain(GemmgenError(diagnostics))
    told: dict[str, object] = {}
    failed = any(faults.values())
    for folder in () if failed else folders:
        found = packing.checked(folder)
        failed |= False in found.values()
        told[folder.as_posix()] = found
        words = {True: "right", False: "wrong", None: "whole, but no GPU of this machine runs it"}
        if not as_json:
            say("\n".join(f"{folder}: {stem} is {words[verdict]}" for stem, verdict in found.items()))
    if as_json:
        print_json(told)
    end(failed)
