"""The tables of a module: its tensors with dtype, axes and TMA box, and the facts that a caller may read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import DType
from gemmgen.literals import python_literal, python_tuple
from gemmgen.plan.axes import axes_of, is_transposed
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.problem import Operand
from gemmgen.problem.epilogue import described, keeps_zeros, listed_steps, written
from gemmgen.render.spelling import LINE_LENGTH, extent_name, fit, layout_name

TMA_UNIT_BYTES = 16
"""TMA writes rows in units of 16 bytes; addresses and row strides are multiples of it."""


@dataclass(frozen=True)
class ArgumentTable:
    """The tables ARGUMENTS, TMA and COMPUTES of one plan's module."""

    plan: Kernel
    is_packed: bool = False
    """True for the module of a pack: its kernels are compiled, and it does not import Triton."""

    @property
    def vanishes(self) -> bool:
        """D is zero if A @ B is zero, whatever the other inputs are.

        A block-scaled kernel takes no K of 0, which would have no scales: a finite factor keeps its zeros.
        """
        if self.plan.problem.d_scale:
            return False  # the scale of zeros is not 0
        keeps = keeps_zeros(self.plan.problem.epilogue, finite_scalars=bool(self.scales))
        return keeps and not self.plan.problem.saves

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.plan.arguments if argument.kind == kind)

    @property
    def scales(self) -> tuple[str, ...]:
        """The arguments that are scales of blocks."""
        return tuple(each.name for each in self.plan.arguments if each.scaled in ("a", "b"))

    @property
    def extras(self) -> tuple[str, ...]:
        """The keyword arguments beside `out`, in the order of the kernel's."""
        others = (each for each in self.plan.arguments if each.tensor not in ("a", "b", "d", "saved"))
        beside = ("workspace", "d_scales")
        return tuple(argument.name for argument in others if argument.kind not in beside)

    @property
    def further_parts(self) -> tuple[str, ...]:
        """The arguments that are B again, each with the box of a further part of its tiles."""
        return tuple(argument.name for argument in self.plan.arguments if argument.part is not None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that are read, in the operator's order."""
        return ("a", "b", *self.extras)

    def operand(self, name: str) -> Operand:
        """Return the operand called ``a`` or ``b``, also by the name of its scales."""
        return self.plan.problem.a if name in ("a", "a_scale") else self.plan.problem.b

    def vector(self, name: str) -> int:
        """Return the elements of K of one element of these scales."""
        return self.operand(name).scale_k

    @property
    def vectors(self) -> tuple[str, ...]:
        """The arguments that are vectors."""
        return self._of_kind("vector") + self._of_kind("group_vector")

    def dtype(self, name: str) -> DType:
        """Return an argument's element type."""
        return self.plan.argument(name).dtype

    @property
    def dtypes(self) -> dict[str, str]:
        """The constants of element types that rows of ARGUMENTS name: that of packed scales."""
        packed = [self.dtype("a_scale")] if self.plan.problem.packs_scales else []
        return {dtype.name.upper(): dtype.torch for dtype in packed}

    @property
    def table(self) -> Iterator[str]:
        """Each argument in the kernel's order: its dtype and its axes."""
        for argument in self._stated:
            named = argument.dtype.name.upper()
            dtype = named if argument.scaled and named in self.dtypes else argument.dtype.torch
            axes = python_tuple(axes_of(self.plan.problem, argument))
            yield f'"{passed_as(argument.name)}": {{"dtype": {dtype}, "axes": {axes}}},'

    @property
    def blocks(self) -> Iterator[str]:
        """Each argument that TMA moves: the shape of a block and its layout, by their names in Triton.

        A packed module has no layouts: its compiled kernels have them.
        """
        for argument in self._stated:
            name, buffers = argument.name, self.plan.shared_buffers
            buffer = next((buffer for buffer in buffers if buffer.operand == name), None)
            if buffer is None:
                continue  # threads read it by its address
            moved = buffer.loaded_shape or buffer.shape
            extents = [f"{extent_name(e)}.value" if e.measure else str(e.size) for e in moved]
            leading = self.plan.access.leading_axes(buffer.tensor)
            layout = f"{layout_name(buffer, buffers, boxed=leading > 0)}.value"
            entry = [f'"block_shape": [{", ".join(["1"] * leading + extents)}]']
            if not self.is_packed:
                entry.append(f'"layout": {layout}')
            head = f'"{passed_as(name)}": '
            yield head + fit("{", entry, "},", indent=4 + len(head), margin=4)

    @property
    def _stated(self) -> Iterator[Argument]:
        """The arguments of the tables: others are of a tensor in them, or from `make_workspace`."""
        return (each for each in self.plan.arguments if each.kind not in ("address", "workspace"))

    @property
    def transposed(self) -> tuple[str, ...]:
        """The matrices that a caller passes as transposed views of the rows in memory."""
        turned = (each for each in self.plan.arguments if is_transposed(self.plan.problem, each))
        return tuple(passed_as(argument.name) for argument in turned)

    def packs(self, name: str) -> bool:
        """Return True if two elements of an operand share a byte."""
        return self.operand(name).dtype.elements_per_byte > 1

    @property
    def k_multiple(self) -> int:
        """The number that K is a multiple of."""
        return self.plan.access.k_multiple

    @property
    def transposed_matrices(self) -> str:
        """The names of the transposed matrices, as a tuple's text."""
        known = ("a", "b", *self.scales, "out_scale")
        return python_tuple([name for name in self.transposed if name in known])

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps between A @ B and D, in words; the formula of each output if there are several sums."""
        request, epilogue = self.plan.request, self.plan.problem.epilogue
        if self.plan.problem.gated:
            return (written(epilogue.value),)
        if self.plan.problem.d_blocks > 1:
            return tuple(map(written, epilogue.values))
        alpha = () if epilogue.alpha == 1 else ("alpha",)
        c = ("c",) if epilogue.beta and not request.lists_c else ()
        found = listed_steps(epilogue, lists_c=request.lists_c)
        return (*alpha, *c, *(step.name if step.operation else described(step) for step in found))

    @property
    def epilogue(self) -> str:
        """The steps as the text of a tuple."""
        if self.plan.problem.gated or self.plan.problem.d_blocks > 1:
            return _wrapped_literal(*self.steps)
        if len(self.steps) < 2:
            return python_tuple(self.steps)
        return fit(
            "(", [python_literal(step) for step in self.steps], ")", indent=len('    "epilogue": '), margin=4
        )

    @property
    def facts(self) -> Iterator[str]:
        """The rows of COMPUTES that no feature adds: facts that a caller may read without a launch."""
        plan = self.plan
        yield f'"inputs": {python_tuple(self.inputs)},'
        yield f'"epilogue": {self.epilogue},'
        yield f'"capability": {self.compute_capability},'
        overhang = f"2**31 - {self.max_overhang}"
        yield f'"max_extent": {overhang},  # TMA coordinates are 32-bit, and a tile may overhang the matrix'
        if plan.schedule_kind == "single_tile":
            sizes = plan.cta_tile_m, plan.cta_columns, plan.cta_tile_k
            yield f'"single_tile": {sizes},'
        if plan.problem.gated:
            blocks = " and ".join(plan.problem.epilogue.accumulators)
            order = f"columns in turn: {blocks}" if plan.problem.interleaved else f"of N columns: {blocks}"
            yield f'"b_blocks": {plan.problem.b_blocks},  # {order}'
            if plan.problem.interleaved:
                yield '"interleaved": True,'
        if plan.problem.d_blocks > 1:
            blocks = " and ".join(plan.problem.epilogue.c_blocks)
            order = f"columns in turn: {blocks}" if plan.problem.interleaved else f"of N columns: {blocks}"
            yield f'"d_blocks": {plan.problem.d_blocks},  # of C and D, {order}'
        if plan.access.reads_c_of_others:
            yield '"d_may_be_c": False,  # a tile also reads rows of C that are of the next group'
        if (multiple := plan.access.n_multiple) > 1:
            why = {
                "scales of D": f"a scale of D is of {multiple} columns",
                "scales of B": "columns that share a scale are of one block",
                "blocks of weights": "`pack_weight` permutes whole blocks",
                "rows of TMA": "TMA reads the second block of a row from column N",
            }
            yield f'"n_multiple": {multiple},  # {why[plan.access.n_unit]}'
        if plan.group_slots:
            yield f'"max_groups": {plan.group_slots},'
        if not plan.deterministic:
            yield '"deterministic": False,  # programs add up sums in any order'
        if not self.vanishes:
            yield '"vanishes": False,  # with a K of 0, D is what the epilogue makes of zeros'
        if self.scales:
            why = "that share a scale" if plan.problem.block_scaled else "per element of b_scale"
            yield f'"scale_vector": {self.vector(self.scales[0])},  # elements of K {why}'
        if scale := plan.problem.d_scale:
            yield '"written": ("out_scale",),  # beside D'
            yield f'"d_scale_columns": {scale.vector},  # of D that share a scale'
        if plan.problem.saves:
            yield '"written": ("saved",),  # beside D'
        if self._of_kind("tile_scales"):
            scale = self.operand("b").scale
            assert scale is not None
            yield f'"scale_columns": {scale.format.rows},  # columns of B that share a scale'
        if self.padded:
            yield f'"k_multiple": {self.k_multiple},  # TMA pads as many elements of 4 bits at a time'
            padded = ", ".join(
                f'"{name}": {plan.architecture.tma_padded_alignment_bytes}' for name in self.padded
            )
            yield f'"alignment": {{{padded}}},  # bytes, of operands that TMA pads'

    @property
    def padded(self) -> tuple[str, ...]:
        """The operands with 4-bit elements that take a byte each in shared memory."""
        return tuple(name for name in ("a", "b") if self.operand(name).padded)

    @property
    def max_overhang(self) -> int:
        """The largest number of elements by which a tile's last coordinate exceeds an extent."""
        plan = self.plan
        columns = plan.program_tile_n * plan.tiles_together
        if plan.problem.interleaved:
            columns = max(plan.loaded_n, plan.problem.d_blocks * plan.program_tile_n)
        return max(plan.program_tile_m, columns, plan.cta_tile_k * plan.splits_per_tile)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return divmod(self.plan.architecture.compute_capability, 10)


def passed_as(name: str) -> str:
    """Return the parameter of `matmul` for an argument of the kernel."""
    return {"d": "out", "d_scale": "out_scale"}.get(name, name)


def _wrapped_literal(*texts: str) -> str:
    """Return a tuple of texts as the value of a row of COMPUTES; a lone text may have several lines."""
    if len(line := python_tuple(texts)) <= LINE_LENGTH - len('    "epilogue": ,'):
        return line
    outer, indent = " " * 8, " " * 12
    items: list[str] = []
    for text in texts:
        if len(outer) + len(python_literal(text)) < LINE_LENGTH and len(texts) > 1:
            items.append(f"{outer}{python_literal(text)},")
            continue
        lines = textwrap.wrap(text, LINE_LENGTH - len(indent) - len('" "'), break_on_hyphens=False)
        parts = [f"{line} " for line in lines[:-1]] + lines[-1:]
        body = "\n".join(f"{indent}{python_literal(part)}" for part in parts)
        items.append(f"{outer}(\n{body}\n{outer}),")
    return "(\n" + "\n".join(items) + "\n    )"
