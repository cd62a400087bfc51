"""The epilogue of a module: what it reads besides the accumulator, and what it does, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.problem import ACTIVATIONS
from gemmgen.render.fit import LINE_LENGTH, fit

ASSIGNMENT = "    tile = "


@dataclass(frozen=True)
class EpilogueView:
    """The epilogue's functions as the templates see them."""

    plan: KernelPlan

    # --- constants and parts

    @property
    def constants(self) -> tuple[tuple[str, str, str], ...]:
        """The name, value and meaning of each factor; -1 and 1 need none."""
        problem = self.plan.problem
        factors = [("ALPHA", problem.alpha, "factor of A @ B")]
        if problem.c and not problem.residual:
            factors.append(("BETA", problem.beta, "factor of C"))
        return tuple((name, repr(value), meaning) for name, value, meaning in factors if abs(value) != 1)

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation functions, each once."""
        return tuple(dict.fromkeys(op for op in self.plan.problem.ops if op in ACTIVATIONS))

    @property
    def divides(self) -> bool:
        """Whether an activation needs a quotient, which is libdevice's fast one."""
        return not {"gelu_tanh", "silu"}.isdisjoint(self.activations)

    @property
    def loads(self) -> bool:
        """Whether a tile's epilogue needs more than the accumulator."""
        return bool(self.plan.problem.c or self.plan.problem.vectors)

    @property
    def summary(self) -> str:
        """What the function does."""
        part = "a sub-tile" if self.plan.subtiles > 1 else "the tile"
        return f"What becomes of {part} of A @ B before it is converted and stored."

    @property
    def widens(self) -> bool:
        """Whether the accumulator has to be converted before anything can be computed with it."""
        return self.plan.problem.transforms and self.plan.problem.accumulator.name != "fp32"

    # --- the steps

    @property
    def steps(self) -> tuple[str, ...]:
        """What lies between accumulator and conversion, as lines of the function's body before it returns."""
        steps = tuple(self._steps())
        return steps[:-1] if steps[-1].startswith(ASSIGNMENT) else steps

    @property
    def result(self) -> str:
        """What the function returns: the tile, or the expression that the last step would assign to it."""
        *_, last = self._steps()
        return last.removeprefix(ASSIGNMENT) if last.startswith(ASSIGNMENT) else "tile"

    def _steps(self) -> Iterator[str]:
        problem = self.plan.problem
        for dimension, name in ((1, "row"), (0, "column")):
            if any(vector.startswith(name) for vector in problem.vectors):
                yield f"    {name}s: gl.constexpr = gl.SliceLayout({dimension}, tile.type.layout)"
        if problem.alpha != 1:
            yield "    tile = -tile" if problem.alpha == -1 else "    tile *= ALPHA"
        if problem.c and not problem.residual:
            yield from self._add_c()
        for op in problem.ops:
            match op:
                case "residual":
                    yield from self._add_c()
                case "tensor_scale":
                    yield "    tile *= tensor_scale"
                case _ if op in ACTIVATIONS:
                    yield f"    tile = {op}(tile)"
                case _:
                    yield from self._vector(op)

    def _add_c(self) -> Iterator[str]:
        plan = self.plan
        widened = ".to(gl.float32)" if plan.problem.c and plan.problem.c.name != "fp32" else ""
        if plan.subtiles > 1:
            yield "    buffer: gl.constexpr = subtile % EPILOGUE_BUFFERS"
            yield from self._lap
            if not self._laps:
                yield f"    # {self.c_phases}"
            yield f"    mbarrier.wait(c_ready.index(buffer), {self.c_phase})"
            yield f"    c = c_smem.index(buffer).load(tile.type.layout){widened}"
        else:
            yield f"    # {self.c_phases}"
            yield f"    mbarrier.wait(c_ready, {self.c_phase})"
            yield f"    c = c_smem.load(tile.type.layout){widened}"
        beta = 1.0 if plan.problem.residual else plan.problem.beta
        yield {1.0: "    tile += c", -1.0: "    tile -= c"}.get(beta, "    tile += BETA * c")

    def _vector(self, name: str) -> Iterator[str]:
        along_m = name.startswith("row")
        source = f"{name}_smem"
        if not along_m and self.plan.subtiles > 1:
            source += ".slice(subtile * SUBTILE_N, SUBTILE_N)"
        layout, broadcast = ("rows", "[:, None]") if along_m else ("columns", "[None, :]")
        widened = "" if self.plan.problem.vector_dtype(name).name == "fp32" else ".to(gl.float32)"
        yield f"    {name} = {source}.load({layout}){widened}"
        yield f"    tile {'*' if name.endswith('scale') else '+'}= {name}{broadcast}"

    # --- arguments

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the function that does it takes."""
        problem = self.plan.problem
        columns = any(vector.startswith("column") for vector in problem.vectors)
        numbered = self.plan.subtiles > 1 and (problem.c or columns)
        return (
            "tile",
            *(("subtile: gl.constexpr",) if numbered else ()),
            *(("c_smem", "c_ready") if problem.c else ()),
            *(f"{vector}_smem" for vector in problem.vectors),
            *(("tensor_scale",) if problem.scalar else ()),
            *(("tiles_done",) if problem.c and self.plan.persistent else ()),
        )

    def call(self, tile: str, indent: int) -> str:
        """Return the call on a part of the accumulator."""
        passed = {"tile": tile, "subtile: gl.constexpr": "i"}
        items = [passed.get(name, name) for name in self.arguments]
        return fit("tile = epilogue(", items, ")", indent=indent)

    @property
    def store_arguments(self) -> tuple[str, ...]:
        """What the store passes on, and what it waits for and refills itself."""
        problem = self.plan.problem
        others = ("tile", "subtile: gl.constexpr", "tiles_done")
        return (
            *(name for name in self.arguments if name not in others),
            *(("c_desc",) if self.refills else ()),
            *(("vectors_ready",) if problem.vectors else ()),
            *(("tiles_done",) if self.loads and self.plan.persistent else ()),
        )

    # --- loads

    @property
    def refills(self) -> bool:
        """Whether a buffer of C holds several parts of one tile, one after the other."""
        return self.plan.problem.c is not None and self.plan.epilogue_buffers < self.plan.subtiles

    @property
    def vectors_phase(self) -> str:
        """The phase in which a tile's row and column operands arrive."""
        return "tiles_done & 1" if self.plan.persistent else "0"

    @property
    def _laps(self) -> bool:
        """Whether each buffer of C comes round several times within a tile."""
        return self.refills and self.plan.persistent

    @property
    def _lap(self) -> tuple[str, ...]:
        """The statement that counts the rounds of a buffer over all tiles."""
        if not self._laps:
            return ()
        return (
            "    # Every sub-tile of C that a buffer receives is a phase of its barrier, over all tiles.",
            "    lap = tiles_done * (SUBTILES // EPILOGUE_BUFFERS) + subtile // EPILOGUE_BUFFERS",
        )

    @property
    def c_phase(self) -> str:
        """The phase in which a part of C arrives."""
        if self._laps:
            return "lap & 1"
        if self.plan.persistent:
            return "tiles_done & 1"
        return "subtile // EPILOGUE_BUFFERS & 1" if self.refills else "0"

    @property
    def c_phases(self) -> str:
        """What the phases of C's barriers are, where a buffer comes round at most once in a tile."""
        if self.plan.persistent:
            return "Each tile is a phase of the barrier."
        if self.refills:
            return "Each sub-tile that a buffer receives is a phase of its barrier."
        return "The barrier's first phase, of the only load into this buffer."

    @property
    def vectors_phases(self) -> str:
        """What the phases of the row and column operands' barrier are."""
        return "each tile is a phase of the barrier" if self.plan.persistent else "they are loaded once"

    @property
    def earlier_reads(self) -> str:
        """What a load of the epilogue's operands must come after."""
        if self.plan.persistent or self.refills:
            return (
                "The threads have read what the buffer held: order their reads before TMA's write, which goes"
            )
        return "Order whatever the threads did in shared memory before TMA's write to it, which goes"

    @property
    def load_c_arguments(self) -> tuple[str, ...]:
        """What it takes."""
        subtile = ("subtile: gl.constexpr",) if self.plan.subtiles > 1 else ()
        return ("c_desc", "row", "column", *subtile, "c_smem", "c_ready")

    @property
    def load_vectors_arguments(self) -> tuple[str, ...]:
        """What the function that loads rows and columns takes."""
        vectors = self.plan.problem.vectors
        along = ("row", "column")
        needed = [name for name in along if any(vector.startswith(name) for vector in vectors)]
        return (
            *(f"{vector}_desc" for vector in vectors),
            *needed,
            *(f"{vector}_smem" for vector in vectors),
            "vectors_ready",
        )

    @property
    def expect_vectors(self) -> str:
        """The statement that awaits the bytes of all rows and columns."""
        each = [f"{vector}_desc.nbytes_per_cta" for vector in self.plan.problem.vectors]
        line = fit("mbarrier.expect(", ("vectors_ready", " + ".join(each)), ")", indent=4)
        if all(len(part) <= LINE_LENGTH for part in line.splitlines()):
            return line
        return fit("mbarrier.expect(", ("vectors_ready", "\n        + ".join(each)), ")", indent=4)

    @staticmethod
    def coordinate(vector: str) -> str:
        """Return where a vector's part for a tile begins."""
        return vector.partition("_")[0]

    def load_calls(self, indent: int, row: str) -> tuple[str, ...]:
        """Return the statements before the K loop that start these loads; `row` is the consumer's."""
        calls: list[str] = []

        def call(name: str, arguments: tuple[str, ...], deeper: int = 0) -> str:
            passed = {"row": row, "subtile: gl.constexpr": "i"}
            items = [passed.get(argument, argument) for argument in arguments]
            return fit(f"{name}(", items, ")", indent=indent + deeper)

        if self.plan.problem.vectors:
            calls.append(call("load_vectors", self.load_vectors_arguments))
        if self.plan.problem.c and self.plan.subtiles > 1:
            body = call("load_c", self.load_c_arguments, deeper=4)
            calls.append(f"for i in gl.static_range(EPILOGUE_BUFFERS):\n{' ' * indent}    {body}")
        elif self.plan.problem.c:
            calls.append(call("load_c", self.load_c_arguments))
        return tuple(calls)
