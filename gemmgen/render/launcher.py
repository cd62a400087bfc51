"""The launcher in C of an exported kernel: what it passes, checks and says, and the program that tests it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import DTYPES, DType
from gemmgen.literals import c_comment_text
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import SharedBuffer
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem.epilogue import (
    ATOM_RANK,
    OPEN_RANK,
    Call,
    Load,
    Spelled,
    Spelling,
    bracketed,
    meaning_of,
)
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.statements import statements
from gemmgen.render.wgmma.overview import HopperOverview
from gemmgen.render.wrapper import Wrapper

TENSOR_MAP_BYTES = 128  # [cuda] sizeof(CUtensorMap)
TENSOR_MAP_ALIGNMENT_BYTES = 64  # [gluon] of the parameter; cuda.h may ask for more where it is a variable
TMA_BOX_MOST = 256  # [cuda] elements of a box along each dimension
SWIZZLES = {0: ("NONE", 0), 32: ("32B", 1), 64: ("64B", 2), 128: ("128B", 3)}
"""[cuda] What the driver calls a swizzle by its bytes, and its number."""
MAP_TYPES = {
    "bf16": ("BFLOAT16", 9),
    "fp16": ("FLOAT16", 6),
    "fp32": ("FLOAT32", 7),
    "tf32": ("TFLOAT32", 7),
    "int32": ("INT32", 3),
}
"""[cuda] What the driver calls element types of 16 and more bits, and its numbers for them; A and B of tf32
are fp32 in memory, which TMA rounds as it loads them."""
MAP_TYPE_OF_BYTES = ("UINT8", 0)
"""[cuda] Its type for elements of 8 bits, which TMA copies as they are."""
C_TYPES = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t"}
PLACES = {"scalar": "0", "row": "row", "column": "column", "matrix": "row * p->n + column"}
"""Where the number of a tensor that an element of D takes is among its numbers."""
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
"""What a function of the launcher can return; their numbers are their places."""
WIDTH = 110


def map_type(dtype: DType) -> tuple[str, int]:
    """Return what the driver calls an element type, and its number for it."""
    return MAP_TYPE_OF_BYTES if dtype.bits == 8 else MAP_TYPES[dtype.name]


def float_bits(dtype: DType) -> tuple[int, int]:
    """Return the bits of exponent and significand of a float as it lies in memory."""
    stored = DTYPES[dtype.in_memory or dtype.name]
    assert stored.significand is not None
    return stored.bits - stored.significand, stored.significand - 1


class DoublePrecision(Spelling):
    """How the test program writes an epilogue, for one element of D."""

    def load(self, load: Load) -> Spelled:
        """Return the number of a tensor."""
        return f"p->{load.tensor}.numbers[{PLACES[load.operand]}]", ATOM_RANK

    def number(self, value: float) -> Spelled:
        """Return a number of type double."""
        return repr(value), super().number(value)[1]

    def activation(self, call: Call, argument: Spelled) -> Spelled:
        """Return the formula of an activation."""
        parameters = {each.name: repr(each.value) for each in call.parameters}
        return OPERATIONS[call.op].c.format(x=bracketed(argument, ATOM_RANK), **parameters), OPEN_RANK


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel: what the driver is given the address of."""

    expression: str
    bytes: int
    alignment: int


@dataclass(frozen=True)
class Described:
    """A tensor that TMA moves, as the launcher describes it."""

    argument: Argument
    passed: str
    """What messages call it, and the caller passes: B for all parts of a tile's columns."""
    swizzle_bytes: int
    box: tuple[int, ...]
    """One CTA's, the contiguous dimension last."""
    extents: tuple[str, ...]
    """Its rows and columns as they lie in memory, or a vector's elements; in terms of m, n and k."""

    @property
    def constant(self) -> str:
        """The constant that holds what is known of it before a launch."""
        return self.argument.name.upper()

    @property
    def type(self) -> str:
        """The driver's constant for the type of its elements."""
        return f"CU_TENSOR_MAP_DATA_TYPE_{map_type(self.argument.dtype)[0]}"

    @property
    def type_number(self) -> int:
        """The number of that type, without the rounding to tf32."""
        return map_type(self.argument.dtype)[1]

    @property
    def swizzle(self) -> str:
        """The driver's constant for its swizzle."""
        return f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[self.swizzle_bytes][0]}"

    @property
    def swizzle_number(self) -> int:
        """The number of that swizzle."""
        return SWIZZLES[self.swizzle_bytes][1]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in memory."""
        return self.argument.dtype.bytes

    @property
    def box_text(self) -> str:
        """Its box, the contiguous dimension first, as TMA counts."""
        return f"{{{', '.join(map(str, reversed(self.box)))}}}"

    @property
    def is_vector(self) -> bool:
        """Whether it has one dimension."""
        return len(self.extents) == 1

    @property
    def describe(self) -> str:
        """The call that checks and describes it."""
        kind = "vector" if self.is_vector else "matrix"
        given = f"arguments->{self.passed}, {', '.join(self.extents)}, &{self.argument.name}"
        return f"describe_{kind}(kernel, &{self.constant}, {given})"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the kernel is passed of it: the map, each extent, and each stride."""
        members = (
            (("extent",), ("stride",)) if self.is_vector else (("rows", "columns"), ("row_stride", "stride"))
        )
        name = self.argument.name
        return (
            Parameter(f"&{name}.map", TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT_BYTES),
            *(Parameter(f"&{name}.{extent}", 4, 4) for extent in members[0]),
            *(Parameter(f"&{name}.{stride}", 8, 8) for stride in members[1]),
        )


@dataclass(frozen=True)
class Element:
    """An element type as the test program writes and reads it."""

    dtype: DType

    @property
    def name(self) -> str:
        """As a spec has it."""
        return self.dtype.name

    @property
    def c_type(self) -> str:
        """What holds its bits."""
        return f"int{self.dtype.bits}_t" if self.dtype.integer else C_TYPES[self.dtype.bits]

    @property
    def encoded(self) -> str:
        """The element that stands for ``number``."""
        if self.dtype.integer:
            return f"({self.c_type})number"
        exponent, significand = float_bits(self.dtype)
        return f"({self.c_type})encoded(number, {exponent}, {significand})"

    @property
    def decoded(self) -> str:
        """The number that an element stands for."""
        element = f"((const {self.c_type} *)elements)[index]"
        if self.dtype.integer:
            return element
        exponent, significand = float_bits(self.dtype)
        return f"decoded({element}, {exponent}, {significand})"


@dataclass(frozen=True)
class Launcher:
    """One Hopper plan's launcher as its templates see it."""

    plan: WgmmaKernel
    stem: str
    cubin: bytes

    # --- names and words

    @property
    def prefix(self) -> str:
        """What the header's constants begin with."""
        return self.stem.upper()

    @property
    def title(self) -> str:
        """The spec's title, for the comment that it stands in."""
        return c_comment_text(f"{self.plan.request.title.rstrip('.')}.")

    @property
    def status_rows(self) -> tuple[tuple[str, int, str], ...]:
        """What a function can return: its name behind the prefix, its number, and what it means."""
        kept = (row for row in STATUSES if self.plan.shares_tiles or row[0] != "BAD_WORKSPACE")
        return tuple((name, number, meaning) for number, (name, meaning) in enumerate(kept))

    @property
    def statuses(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(name for name, _, _ in self.status_rows)

    @property
    def contract(self) -> Iterator[str]:
        """What a caller has to know, in lines of a comment, each with the blank in front."""
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
            f"number of them, so N is a multiple of {self.out_unit}. M, N and K are from 0 to "
            f"{self.max_extent:,}{self._k_limit}.{self._single_tile} D shares no memory with what is read. "
            "Of the host's memory only the structures below are read."
        )

    @property
    def _k_limit(self) -> str:
        return "" if self.vanishes else ", K at least 1, for D is not zero where A @ B is"

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
    def _wrapper(self) -> Wrapper:
        return Wrapper(self.plan)

    @property
    def limits(self) -> str:
        """The extents that a kernel for a single tile takes."""
        return self._wrapper.limits

    @property
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is."""
        return self._wrapper.vanishes

    @property
    def out_unit(self) -> int:
        """What the columns of D are a multiple of."""
        return self._wrapper.out_unit

    @property
    def max_extent(self) -> int:
        """The most that M, N and K can be."""
        return 2**31 - self._wrapper.max_overhang

    # --- the header

    @property
    def fields(self) -> Iterator[str]:
        """The members of the arguments behind m, n and k."""
        for argument in self.plan.arguments:
            name = argument.name
            if argument.kind == "matrix" and argument.part is None:
                rows, columns = (extent.upper() for extent in self._extents(argument))
                lies = "; B is its transposed view" if name == "b" and rows == "N" else ""
                lies = "; A is its transposed view" if name == "a" and rows == "K" else lies
                elements = f"{rows} rows of {columns} {argument.dtype.name}"
                yield f"{self.stem}_matrix {name}; /* {elements}{lies} */"
            elif argument.kind == "vector":
                meaning = meaning_of(self.plan.problem.epilogue, name)
                extent = self._extents(argument)[0].upper()
                yield f"CUdeviceptr {name}; /* {extent} {argument.dtype.name}: {meaning} */"
            elif argument.kind == "scalar":
                meaning = meaning_of(self.plan.problem.epilogue, name)
                yield f"CUdeviceptr {name}; /* one {argument.dtype.name}: {meaning} */"
        if self.plan.shares_tiles:
            yield f"{self.stem}_workspace workspace;"

    # --- constants

    @property
    def constants(self) -> Iterator[tuple[str, int, str]]:
        """The name, value and meaning of what the kernel was compiled for."""
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

    # --- what the kernel is passed

    def _extents(self, argument: Argument) -> tuple[str, ...]:
        """Return the rows and columns of a tensor as it lies in memory, or the elements of a vector."""
        if argument.along:
            return (argument.along,)
        problem = self.plan.problem
        stored = {
            "a": ("m", "k") if problem.a.major == "k" else ("k", "m"),
            "b": ("n", "k") if problem.b.major == "k" else ("k", "n"),
        }
        return stored.get(argument.tensor, ("m", "n"))

    def _box(self, buffer: SharedBuffer, argument: Argument) -> tuple[int, ...]:
        """Return what one TMA instruction of a CTA moves: at most a swizzle's span of a row."""
        ctas = {"m": self.plan.cluster_m, "n": self.plan.cluster_n}
        extents = self._extents(argument)
        shares = [
            extent.size // ctas.get(axis, 1) for extent, axis in zip(buffer.shape, extents, strict=True)
        ]
        span = buffer.swizzle_bytes // argument.dtype.bytes or TMA_BOX_MOST
        return (*(min(share, TMA_BOX_MOST) for share in shares[:-1]), min(shares[-1], span))

    @property
    def tensors(self) -> tuple[Described, ...]:
        """The tensors that TMA moves, in the kernel's order."""
        buffers = {buffer.operand: buffer for buffer in reversed(self.plan.shared_buffers)}
        return tuple(
            Described(
                argument=argument,
                passed=argument.tensor,
                swizzle_bytes=buffers[argument.name].swizzle_bytes,
                box=self._box(buffers[argument.name], argument),
                extents=self._extents(argument),
            )
            for argument in self.plan.arguments
            if argument.name in buffers
        )

    @property
    def vectors(self) -> tuple[Described, ...]:
        """Those of one dimension."""
        return tuple(tensor for tensor in self.tensors if tensor.is_vector)

    @property
    def parameters(self) -> Iterator[Parameter]:
        """All parameters of the kernel, in order; the last two are for scratch memory that Triton may use."""
        tensors = {tensor.argument: tensor for tensor in self.tensors}
        for argument in self.plan.arguments:
            if argument in tensors:
                yield from tensors[argument].parameters
            else:
                yield Parameter(f"&{argument.name}", 8, 8)
        yield Parameter("&no_scratch", 8, 8)
        yield Parameter("&no_scratch", 8, 8)

    @property
    def parameter_lines(self) -> list[str]:
        """Their addresses, in lines of an initializer."""
        text = ", ".join(parameter.expression for parameter in self.parameters)
        return textwrap.wrap(f"{text},", width=WIDTH - 8)

    @property
    def locals(self) -> Iterator[str]:
        """The variables that hold them."""
        matrices = ", ".join(tensor.argument.name for tensor in self.tensors if not tensor.is_vector)
        yield f"PassedMatrix {matrices};"
        if self.vectors:
            yield f"PassedVector {', '.join(tensor.argument.name for tensor in self.vectors)};"
        if self.plan.problem.scalar:
            yield "CUdeviceptr tensor_scale = arguments->tensor_scale;"
        if self.plan.shares_tiles:
            behind = "counter_bytes(arguments->workspace.counters)"
            yield f"CUdeviceptr partials = arguments->workspace.address + {behind};"
            yield "CUdeviceptr counters = arguments->workspace.address;"
        yield "CUdeviceptr no_scratch = 0;"

    # --- the workspace

    @property
    def counted(self) -> str:
        """What the counters are of."""
        each = ", for each consumer" if self.plan.counting_partitions else ""
        tiles = "one for each tile of the last wave" if self.plan.divides_last_wave else "one for each tile"
        return f": {tiles}{each}"

    @property
    def counters(self) -> str:
        """How many there are."""
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

    # --- the launch

    @property
    def programs_meaning(self) -> str:
        """What sets the number of programs."""
        if not self.plan.persistent:
            return "one for each tile" if self.plan.splits == 1 else "one for each part of each tile"
        return "as many as the GPU holds, or as there is work for"

    @property
    def programs_head(self) -> str:
        """What it depends on."""
        known = [name for name, used in (("sm_count", self.plan.persistent),) if used]
        extents = {"m": True, "n": True, "k": self.plan.divides_last_wave}
        if self.plan.schedule_kind == "single_tile":
            return "void"
        return ", ".join(
            f"int64_t {name}" for name in (*known, *(name for name, used in extents.items() if used))
        )

    @property
    def programs_of(self) -> str:
        """The arguments of its call."""
        if self.plan.schedule_kind == "single_tile":
            return ""
        known = ["kernel->sm_count"] if self.plan.persistent else []
        return ", ".join((*known, "m", "n", *(["k"] if self.plan.divides_last_wave else [])))

    @property
    def programs_body(self) -> Iterator[str]:
        """The statements that compute it."""
        plan = self.plan
        if plan.schedule_kind == "single_tile":
            yield "return 1;"
            return
        work = "tiles_of(m, n)"
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
        """What bounds the number of programs of a persistent kernel, as in the wrapper."""
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
        """What becomes of a K of 0."""
        if self.vanishes:
            return "clear(kernel, arguments, stream)"
        return 'fail(BAD_EXTENT, "k must be at least 1: D is not zero where A @ B is")'

    @property
    def attributes(self) -> str:
        """The declaration of the launch's attributes, if it has any."""
        lines: list[str] = []
        if self.plan.cluster_size > 1:
            lines += [
                "{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {CLUSTER_CTAS, 1, 1}},",
                "{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,",
                " .value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD},",
            ]
        if self.plan.dependent:
            lines += [
                "{.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,",
                " .value.programmaticStreamSerializationAllowed = 1},",
            ]
        if not lines:
            return ""
        body = "".join(f"        {line}\n" for line in lines)
        return f"    CUlaunchAttribute attributes[] = {{\n{body}    }};\n"

    @property
    def attribute_fields(self) -> tuple[str, ...]:
        """The members of the launch's configuration that hold them."""
        if not self.attributes:
            return ()
        return (".attrs = attributes,", ".numAttrs = sizeof attributes / sizeof *attributes,")

    @property
    def _memsets(self) -> Iterator[tuple[str, str, str]]:
        """The driver's functions that set memory to zero, where the launcher does."""
        if self.plan.shares_tiles:
            yield "memset_d8_async", "cuMemsetD8Async", "CUdeviceptr, unsigned char, size_t, CUstream"
        if self.vanishes:
            extents = "CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream"
            yield "memset_d2d8_async", "cuMemsetD2D8Async", extents

    @property
    def memset_declarations(self) -> Iterator[str]:
        """Their members of the driver's table."""
        return (f"CUresult (*{member})({types});" for member, _, types in self._memsets)

    @property
    def memset_names(self) -> Iterator[str]:
        """Their names and places."""
        return (f'{{"{name}", &driver->{member}}},' for member, name, _ in self._memsets)

    # --- the test program

    @property
    def _test_arguments(self) -> tuple[Argument, ...]:
        """The tensors that a caller passes."""
        own = (argument for argument in self.plan.arguments if argument.part is None)
        return tuple(argument for argument in own if argument.kind != "workspace")

    @property
    def test_names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(argument.name for argument in self._test_arguments)

    @property
    def tensor_names(self) -> str:
        """Their names, in a declaration."""
        return ", ".join(self.test_names)

    @property
    def test_inputs(self) -> tuple[Element, ...]:
        """The element types that the test program writes, D's among them."""
        dtypes = {argument.dtype.name: argument.dtype for argument in self._test_arguments}
        return tuple(map(Element, dtypes.values()))

    @property
    def test_floats(self) -> bool:
        """Whether any of them is a float."""
        return any(not element.dtype.integer for element in self.test_inputs)

    @property
    def decoded_d(self) -> str:
        """The number that an element of D stands for."""
        return Element(self.plan.problem.d).decoded

    @property
    def test_tensors(self) -> Iterator[str]:
        """The statements that make the tensors."""
        for argument in self._test_arguments:
            extents = ("1",) if argument.kind == "scalar" else self._extents(argument)
            rows, columns = ("1", *extents)[-2:]
            unit = "1" if argument.dtype.integer else "0.25"
            given = f"{rows}, {columns}, {argument.dtype.bytes}, {unit}, put_{argument.dtype.name}"
            yield f"{argument.name} = filled({given});"

    @property
    def test_arguments(self) -> Iterator[str]:
        """The members of the launcher's arguments."""
        for argument in self._test_arguments:
            name = argument.name
            value = f"p.{name}.address"
            yield (
                f".{name} = {{{value}, p.{name}.row_stride}},"
                if argument.kind == "matrix"
                else f".{name} = {value},"
            )

    @property
    def a_index(self) -> str:
        """Where A[row, i] is among its numbers."""
        return "row * p->k + i" if self.plan.problem.a.major == "k" else "i * p->m + row"

    @property
    def b_index(self) -> str:
        """Where B[i, column] is among its numbers."""
        return "column * p->k + i" if self.plan.problem.b.major == "k" else "i * p->n + column"

    @property
    def steps(self) -> Iterator[str]:
        """The statements of the epilogue, whose sums are in ``value``."""
        declared = {"value"}
        for statement in statements(self.plan.problem.epilogue, DoublePrecision(), "value"):
            yield f"{'double ' * (statement.variable not in declared)}{statement};"
            declared.add(statement.variable)

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        along_n = "divided_up(n, PROGRAM_TILE_N)"
        if (together := self.plan.tiles_together) > 1:
            along_n = f"{together} * divided_up(n, {together} * PROGRAM_TILE_N)"
        return f"divided_up(m, PROGRAM_TILE_M) * {along_n}"

    @property
    def tolerance(self) -> str:
        """Largest relative error of an element of D: its rounding, and what the epilogue's functions cost."""
        problem = self.plan.problem
        return repr((problem.d.tolerance or 0.0) + sum(operation.error for operation in problem.operations))

    @property
    def shapes(self) -> tuple[str, ...]:
        """The problems that the test program takes if none is named: of whole tiles, and of none."""
        plan, unit = self.plan, self.out_unit
        count = 1 if plan.schedule_kind == "single_tile" else 2
        m, n, k = (
            plan.program_tile_m * count,
            plan.program_tile_n * count,
            plan.cta_tile_k * plan.splits * count,
        )
        ragged = (m - 3, max(unit, n - unit), max(1, k - 8))
        return tuple(f"{{{', '.join(map(str, shape))}}}" for shape in ((m, n, k), ragged))
