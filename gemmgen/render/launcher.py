"""The launcher in C of an exported kernel: its contract, constants, workspace, grid and attributes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.literals import c_comment_text
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.aot.block_scales import BY_ADDRESS
from gemmgen.render.described import WIDTH, DescribedTensors
from gemmgen.render.wgmma.overview import HopperOverview

STATUSES = (
    ("OK", "done, or launched"),
    ("NO_DRIVER", "libcuda.so.1 cannot be loaded, or is too old"),
    ("DRIVER_FAILED", "a call of the driver failed"),
    ("WRONG_CUBIN", "the file cannot be read, or is another one"),
    ("WRONG_DEVICE", "the current context's GPU cannot run the kernel"),
    ("NO_MEMORY", "the host has none"),
    ("BAD_EXTENT", "M, N or K is out of range"),
    ("BAD_ADDRESS", "a pointer is NULL, or an address is 0 or no multiple of what TMA needs"),
    ("BAD_STRIDE", "rows overlap, or are not a multiple of 16 bytes apart"),
    ("BAD_WORKSPACE", "the workspace is too small, or there is none"),
)
"""The statuses that a function of the launcher can return, numbered by their places."""


@dataclass(frozen=True)
class Launcher(DescribedTensors):
    """One Hopper plan's launcher as its templates see it."""

    @property
    def prefix(self) -> str:
        """The prefix of the header's constants."""
        return self.stem.upper()

    @property
    def title(self) -> str:
        """The spec's title, for the comment that it stands in."""
        return c_comment_text(f"{self.plan.request.title.rstrip('.')}.")

    @property
    def status_rows(self) -> tuple[tuple[str, int, str], ...]:
        """The name after the prefix, the number and the meaning of each status of a function."""
        kept = (row for row in STATUSES if self.plan.shares_tiles or row[0] != "BAD_WORKSPACE")
        return tuple((name, number, meaning) for number, (name, meaning) in enumerate(kept))

    @property
    def statuses(self) -> tuple[str, ...]:
        """The names of the statuses."""
        return tuple(name for name, _, _ in self.status_rows)

    @property
    def contract(self) -> Iterator[str]:
        """The contract of a caller, in lines of a comment, each with the blank in front."""
        overview = HopperOverview(self.plan)
        paragraphs = (
            overview.formula_paragraph,
            overview.structure,
            self._memory,
            self._early,
            self._workspace,
        )
        for number, paragraph in enumerate(filter(None, paragraphs)):
            if number:
                yield ""
            for line in textwrap.wrap(" ".join(paragraph.split()), width=WIDTH - 3):
                yield f" {line}"

    @property
    def _memory(self) -> str:
        return (
            f"All matrices lie in the memory of one GPU of compute capability {self._capability}, row by "
            "row. Addresses, and the distances of rows, are multiples of 16 bytes; a row of D is a whole "
            f"number of them{self._columns}. {self._extents_in_words} are from 0 to "
            f"{self.max_extent:,}{self._k_limit}.{self._single_tile}{self._groups}{self._scales} "
            "D shares no memory with what is read. Of the host's memory only the structures below are read."
        )

    @property
    def _columns(self) -> str:
        """The number that N is a multiple of, in words."""
        if self.column_unit == self.out_unit:
            return f", so N is a multiple of {self.out_unit}"
        if self.plan.problem.d_scale or self.plan.problem.has_tile_scales:
            return f", and N is a multiple of {self.column_unit}, the columns that share a scale"
        return f", and so is a row of a block of B, so N is a multiple of {self.column_unit}"

    @property
    def _extents_in_words(self) -> str:
        return "M, 2N and K" if self.plan.problem.gated else "M, N and K"

    @property
    def _k_limit(self) -> str:
        return "" if self.vanishes else f", K at least 1: {self.not_zero}"

    @property
    def not_zero(self) -> str:
        """The reason for which a K of 0 is refused."""
        if self.plan.problem.d_scale:
            return "the scales of D are not zero where A @ B is"
        return "rows of no group stay as they are" if self.leaves_rows else "D is not zero where A @ B is"

    @property
    def _groups(self) -> str:
        if self.groups is None:
            return ""
        most = f"{self.plan.group_slots:,}" if self.plan.group_slots else "any number"
        return f" There are up to {most} groups; their matrices, and their vectors, follow one another."

    @property
    def _scales(self) -> str:
        """Where rows of scales begin that are passed by their address, in words."""
        if not any(argument.kind in BY_ADDRESS for argument in self.plan.arguments):
            return ""
        return (
            " Rows of scales that are passed as an address begin every multiple of 16 bytes, without a gap."
        )

    @property
    def _single_tile(self) -> str:
        return f" It takes {self.limits}." if self.plan.schedule_kind == "single_tile" else ""

    @property
    def _early(self) -> str:
        early = self.plan.read_early
        if early is None:
            return ""
        return (
            "The kernel may start before the one ahead of it in the stream has ended (programmatic dependent "
            f"launch), and then reads {early.upper()} at once: the kernel ahead must not write it."
        )

    @property
    def _workspace(self) -> str:
        if not self.plan.shares_tiles:
            return ""
        return (
            "Programs leave each other sums in a workspace: memory of the caller's that is set to zero once, "
            "and that every call leaves ready for the next one. Calls that may run at the same time have one "
            f"each. One for M x N serves smaller problems too.{self._order_of_sums}"
        )

    @property
    def _order_of_sums(self) -> str:
        if self.plan.deterministic:
            return ""
        return " Sums are added in the order in which they come: the last bits of D differ from call to call."

    @property
    def _capability(self) -> str:
        major, minor = self._wrapper.compute_capability
        return f"{major}.{minor}"

    @property
    def fields(self) -> Iterator[str]:
        """The members of the arguments after m, n and k."""
        for argument in self.plan.arguments:
            name = argument.name
            if scales := self.scales(argument):
                kind = "CUdeviceptr" if scales.is_by_address else f"{self.stem}_matrix"
                yield f"{kind} {name}; /* {scales.field} */"
            elif argument.kind == "matrix" and argument.part is None:
                rows, columns = map(_in_words, self._all_extents(argument))
                turned = name in self._wrapper.transposed
                lies = f"; {name.upper()} is its transposed view" if turned else ""
                elements = f"{rows} rows of {columns} {argument.dtype.name}"
                yield f"{self.stem}_matrix {name}; /* {elements}{lies} */"
            elif argument.kind == "groups":
                yield f"CUdeviceptr {name}; /* G {argument.dtype.name}: {self._meaning_of_counts} */"
            elif argument.kind in ("vector", "group_vector"):
                meaning = meaning_of(self.plan.problem.epilogue, name)
                extent = _in_words(self._all_extents(argument)[0])
                yield f"CUdeviceptr {name}; /* {extent} {argument.dtype.name}: {meaning} */"
            elif argument.kind == "scalar":
                meaning = meaning_of(self.plan.problem.epilogue, name)
                yield f"CUdeviceptr {name}; /* one {argument.dtype.name}: {meaning} */"
        if self.plan.shares_tiles:
            yield f"{self.stem}_workspace workspace;"

    @property
    def _meaning_of_counts(self) -> str:
        """Meaning of the tensor that divides rows, or K, into groups."""
        groups = self.groups
        assert groups is not None
        if groups.divides_k:
            return "the end of each group along K, in rising order"
        return "the rows of each group" if groups.apart else "the end of each group's rows, in rising order"

    @property
    def extents(self) -> str:
        """The members of the arguments that are extents."""
        return "m, n, k, groups" if self.groups else "m, n, k"

    @property
    def read_extents(self) -> str:
        """The declarations of the extents of a call."""
        return ", ".join(f"{name} = arguments->{name}" for name in self.extents.split(", "))

    @property
    def most_groups(self) -> str:
        """The greatest number of groups, in C."""
        return str(self.plan.group_slots) if self.plan.group_slots else "MAX_EXTENT"

    @property
    def stacked(self) -> Iterator[tuple[str, str]]:
        """The name of each matrix that has a dimension for groups, and its rows of all groups in C."""
        for argument in self.plan.arguments:
            rows = self._all_extents(argument)[0]
            if argument.kind == "matrix" and rows.startswith("groups"):
                yield argument.name, rows

    @property
    def most_dimensions(self) -> int:
        """The most dimensions of a descriptor."""
        return 3 if self.groups else 2

    @property
    def rows_to_clear(self) -> str:
        """The rows of D in memory, by the arguments of a call."""
        return " * ".join(f"arguments->{name}" for name in self.all_rows.split(" * "))

    @property
    def tiles_head(self) -> str:
        """The parameters of the function that returns the number of tiles."""
        return "int64_t m, int64_t n" + ", int64_t groups" * bool(self.groups)

    @property
    def constants(self) -> Iterator[tuple[str, int, str]]:
        """The name, value and meaning of each constant that the kernel was compiled with."""
        plan = self.plan
        major, minor = self._wrapper.compute_capability
        yield "CUBIN_BYTES", len(self.cubin), ""
        yield "CAPABILITY_MAJOR", major, ""
        yield "CAPABILITY_MINOR", minor, ""
        yield "PROGRAM_TILE_M", plan.program_tile_m, " /* of D, by one program at a time */"
        yield "PROGRAM_TILE_N", plan.program_tile_n, ""
        if plan.schedule_kind == "single_tile" or plan.divides_last_wave:
            yield "CTA_TILE_K", plan.cta_tile_k, ""
        if plan.shares_tiles:
            yield "CONSUMERS", plan.counting_partitions or 1, " /* that count the parts of a tile */"
            yield "SUMS", plan.consumer_tile_m * plan.program_tile_n, " /* of each of them */"
        if plan.divides_last_wave:
            yield "PROGRAMS", plan.most_programs, " /* at most: the workspace has places for so many */"
        elif plan.shares_tiles:
            yield "SPLITS", plan.splits, " /* parts of K */"
        yield "CLUSTER_CTAS", plan.cluster_size, ""
        yield "THREADS", plan.threads, " /* of a CTA */"
        yield "SMEM_BYTES", plan.smem_bytes, " /* of a CTA */"

    @property
    def cubin_digest(self) -> str:
        """The cubin's FNV-1a digest of 64 bits."""
        digest = 14695981039346656037
        for byte in self.cubin:
            digest = (digest ^ byte) * 1099511628211 % 2**64
        return f"UINT64_C({digest:#018x})"

    @property
    def counted(self) -> str:
        """The subject of the counters, for a comment."""
        each = ", for each consumer" if self.plan.counting_partitions else ""
        tiles = "one for each tile of the last wave" if self.plan.divides_last_wave else "one for each tile"
        return f": {tiles}{each}"

    @property
    def counters(self) -> str:
        """The number of counters."""
        if self.plan.divides_last_wave:
            return "(tiles < PROGRAMS ? tiles : PROGRAMS) * CONSUMERS"
        return "tiles * CONSUMERS"

    @property
    def sum_bytes(self) -> str:
        """Bytes of the sums that programs leave in memory."""
        each = f"SUMS * sizeof({'int32_t' if self.plan.problem.accumulator.integer else self._sum_type})"
        if self.plan.divides_last_wave:
            return f"((size_t)PROGRAMS * CONSUMERS + (size_t)counters) * {each}"
        splits = "SPLITS * " if self.plan.restored == ("counters",) else ""
        return f"(size_t)counters * {splits}{each}"

    @property
    def _sum_type(self) -> str:
        return {16: "uint16_t", 32: "float"}[self.plan.problem.accumulator.bits]

    @property
    def programs_meaning(self) -> str:
        """The reason for the number of programs, for a comment."""
        if not self.plan.persistent:
            return "one for each tile" if self.plan.splits == 1 else "one for each part of each tile"
        return "as many as the GPU holds, or as there is work for"

    @property
    def programs_head(self) -> str:
        """The parameters of the function that returns the number of programs."""
        known = [name for name, used in (("sm_count", self.plan.persistent),) if used]
        extents = {"m": True, "n": True, "k": self.plan.divides_last_wave, "groups": bool(self.groups)}
        if self.plan.schedule_kind == "single_tile":
            return "void"
        return ", ".join(
            f"int64_t {name}" for name in (*known, *(name for name, used in extents.items() if used))
        )

    @property
    def programs_of(self) -> str:
        """The arguments of a call of that function."""
        if self.plan.schedule_kind == "single_tile":
            return ""
        known = ["kernel->sm_count"] if self.plan.persistent else []
        more = [*["k"] * self.plan.divides_last_wave, *["groups"] * bool(self.groups)]
        return ", ".join((*known, "m", "n", *more))

    @property
    def programs_body(self) -> Iterator[str]:
        """The statements of that function."""
        plan = self.plan
        if plan.schedule_kind == "single_tile":
            yield "return 1;"
            return
        work = "tiles_of(m, n, groups)" if self.groups else "tiles_of(m, n)"
        if plan.divides_last_wave:
            work += " * divided_up(k, CTA_TILE_K)"
        elif plan.shares_tiles:
            work += " * SPLITS"
        if not plan.persistent:
            yield f"return {work};"
            return
        yield f"int64_t programs = {work};"
        for most in self._most_programs:
            yield f"if (programs > {most})"
            yield f"    programs = {most};"
        yield "return programs;"

    @property
    def _most_programs(self) -> Iterator[str]:
        """The upper bounds of the number of programs of a persistent kernel, as in the wrapper."""
        plan, gpu = self.plan, self.plan.gpu
        if plan.cluster_size > 1:
            yield "sm_count / CLUSTER_CTAS"
        else:
            yield "sm_count" if plan.occupancy == 1 else f"sm_count * {plan.occupancy}"
        if plan.cluster_size > 2 and gpu.clusters_of_four < gpu.sm_count // 4:
            yield f"{gpu.clusters_of_four}"
        if plan.divides_last_wave:
            yield "PROGRAMS"

    @property
    def without_k(self) -> str:
        """The expression for a call with a K of 0."""
        if self.vanishes:
            return "clear(kernel, arguments, stream)"
        return f'fail(BAD_EXTENT, "k must be at least 1: {self.not_zero}")'

    @property
    def attributes(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        """The attributes of the launch: the id of each, and the members of its value with theirs in C."""
        found: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        if self.plan.cluster_size > 1:
            extents = (("clusterDim.x", "CLUSTER_CTAS"), ("clusterDim.y", "1"), ("clusterDim.z", "1"))
            spread = "CU_CLUSTER_SCHEDULING_POLICY_SPREAD"
            found += [
                ("CLUSTER_DIMENSION", extents),
                ("CLUSTER_SCHEDULING_POLICY_PREFERENCE", (("clusterSchedulingPolicyPreference", spread),)),
            ]
        if self.plan.dependent:
            allowed = ("programmaticStreamSerializationAllowed", "1")
            found.append(("PROGRAMMATIC_STREAM_SERIALIZATION", (allowed,)))
        return tuple(found)

    @property
    def attribute_lines(self) -> Iterator[str]:
        """The assignments of the attributes: C++ has no nested designators."""
        for number, (name, members) in enumerate(self.attributes):
            yield f"attributes[{number}].id = CU_LAUNCH_ATTRIBUTE_{name};"
            for member, value in members:
                yield f"attributes[{number}].value.{member} = {value};"

    @property
    def _memsets(self) -> Iterator[tuple[str, str, str]]:
        """The driver's functions that set memory to zero, if the launcher calls them."""
        if self.plan.shares_tiles:
            yield "memset_d8_async", "cuMemsetD8Async", "CUdeviceptr, unsigned char, size_t, CUstream"
        if self.vanishes:
            extents = "CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream"
            yield "memset_d2d8_async", "cuMemsetD2D8Async", extents

    @property
    def memset_declarations(self) -> Iterator[str]:
        """The members of the driver's table for these functions."""
        return (f"CUresult (*{member})({types});" for member, _, types in self._memsets)

    @property
    def memset_names(self) -> Iterator[str]:
        """The names and places of these functions."""
        return (f'{{"{name}", &driver->{member}}},' for member, name, _ in self._memsets)

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        along_n = "divided_up(n, PROGRAM_TILE_N)"
        if (together := self.plan.tiles_together) > 1:
            along_n = f"{together} * divided_up(n, {together} * PROGRAM_TILE_N)"
        along_m = "divided_up(m, PROGRAM_TILE_M)"
        if self.groups and self.groups.stacks("d"):
            return f"groups * {along_m} * {along_n}"
        return f"{'tile_rows' if self.groups else along_m} * {along_n}"

    @property
    def count_tile_rows(self) -> tuple[str, ...]:
        """The statements that count rows of tiles of groups whose ends the GPU knows; empty without them."""
        if self.groups is None or self.groups.stacks("d"):
            return ()
        return (
            "/* Each group has at most one tile that is not full, and only groups with rows have tiles. */",
            "const int64_t most = m / PROGRAM_TILE_M + groups, tile_rows = most < m ? most : m;",
        )


def _in_words(extent: str) -> str:
    """Return an expression of extents as readers of a header know it: ``G x N``."""
    return extent.replace("groups", "G").replace("*", "x").upper().replace(" X ", " x ")
