"""The docstring of a module's `matmul`: the formula, the tensors that it takes, and its limits."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gemmgen.plan.axes import axes_in_memory, axes_of, shown
from gemmgen.problem import Gradient, gradients_of
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.launching import LaunchView
from gemmgen.render.overview import epilogue_sentence, formula
from gemmgen.render.spelling import LINE_LENGTH


@dataclass(frozen=True)
class MatmulDocs(LaunchView):
    """The docstring of one plan's `matmul` as its template sees it."""

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """The gradients that the backward multiplies; empty without a backward."""
        return gradients_of(self.plan.problem)

    @property
    def no_backward(self) -> str:
        """The words of a docstring for a module without a backward."""
        return "" if self.gradients else "; no backward"

    @property
    def argument_docs(self) -> str:
        """The lines of the docstring's argument section."""
        return self.docs_of_arguments(workspace=self.workspace)

    def docs_of_arguments(self, *, workspace: bool) -> str:
        """Return the lines of a docstring's argument section, with or without the workspace."""
        problem = self.plan.problem
        a = "K contiguous"
        if problem.a.major == "mn":
            a = f"M contiguous: the transposed view of a tensor {self._in_memory('a')}"
        stacked = bool(problem.groups and problem.groups.spans("b"))
        turned = f"a tensor {self._in_memory('b')} (``weight.{'mT' if stacked else 'T'}``)"
        b = f"K contiguous: the transposed view of {turned}"
        if problem.b.major == "mn":
            b = "N contiguous"
        if problem.gated:
            names = problem.epilogue.accumulators
            first, last = ("even", "odd") if problem.interleaved else ("first N", "last N")
            line = "rows" if problem.b.major == "k" else "columns"
            b += f", whose {first} {line} are of {names[0]} and whose {last} {line} are of {names[1]}"
            if problem.b.major == "mn" and self.plan.access.n_multiple > 1:
                b += f"; N is a multiple of {self.plan.access.n_multiple}"
        packed = ", two elements a byte, the one of even k in its lower half"
        a, b = (doc + packed * self.packs(name) for name, doc in (("a", a), ("b", b)))
        if groups := problem.groups:
            shared = "; all groups share it, also without the 1 or expanded to [groups, …]"
            a, b = (doc + shared * (groups.broadcast == name) for name, doc in (("a", a), ("b", b)))
        if problem.gathers_a:
            a = f"{a}; K is a multiple of {self.k_multiple}"
        if self.packs("a") and self.packs("b"):
            b = f"K contiguous, as ``weight.T`` of a weight {self._in_memory('b')} is; packed as a is"
        step = self.plan.architecture.tma_padded_alignment_bytes
        alignment = f"; rows at multiples of {step} bytes, K one of {self.k_multiple}"
        a, b = (doc + alignment * (name in self.padded) for name, doc in (("a", a), ("b", b)))
        contract = "read while the kernel ahead in the stream may still run, which must not write it"
        early = {name: f"; {contract}" * (self.plan.read_early == name) for name in ("a", "b")}
        docs = [
            f"a: {self._shape('a')}, {problem.a.dtype.torch}, {a}{early['a']}.",
            f"b: {self._shape('b')}, {problem.b.dtype.torch}, {b}{early['b']}.",
        ]
        if self.scales and not self.packs_scales:
            docs += self._docs_of_scales
        elif self.scales:
            vector = self.vector("a_scale")
            made = f"{self.scale_torch}; or packed by `pack_scales`"
            docs += [
                f"{name}_scale: [{rows}, ceil(K / {vector})], {made}."
                for name, rows in zip("ab", "MN", strict=True)
            ]
        order = ""
        if problem.d_blocks > 1:
            names = problem.epilogue.c_blocks
            first, last = ("even", "odd") if problem.interleaved else ("first N", "last N")
            order = f", whose {first} columns are of {names[0]} and whose {last} columns are of {names[1]}"
            order += f"; N is a multiple of {self.plan.access.n_multiple}" * (self.plan.access.n_multiple > 1)
        if problem.c:
            docs.append(
                f"c: {self._shape('c')}, {problem.c.torch}, {'rows' if order else 'N'} contiguous{order}."
            )
        for name in self.vectors:
            meaning = meaning_of(problem.epilogue, name)
            parted = name in problem.parted_vectors and self.plan.access.n_multiple > 1
            multiple = f"; N is a multiple of {self.plan.access.n_multiple}" if parted else ""
            docs.append(
                f"{name}: {self._shape(name)}, {self.dtype(name).torch}, contiguous: {meaning}{multiple}."
            )
        docs += self._docs_of_groups
        if problem.scalar:
            meaning = meaning_of(problem.epilogue, "tensor_scale")
            docs.append(f"tensor_scale: one element, torch.float32: {meaning}.")
        or_c = ", or c" if self.plan.access.d_may_be_c else ""
        own = f"in memory of its own{or_c}; if None, a new view of padded rows"
        if workspace:
            docs.append("workspace: from `make_workspace`, for one call at a time; if None, the stream's.")
        if problem.scatters_d:
            own = f"{own} for M rows"
        saved = "as wide as B, in the order of its columns: the sums before the epilogue; if None, new memory"
        lies = "rows as in c" if order else "N contiguous"
        docs.append(f"out: {self._shape('d')}, {problem.d.torch}, {lies}, {own}.")
        if scale := problem.d_scale:
            shape = shown((*axes_of(problem, self.plan.argument("d"))[:-1], f"N / {scale.vector}"))
            # The words on scales of B of a gate have said which N there is.
            says_n = problem.gated and problem.has_tile_scales
            multiple = "" if says_n else f" N is a multiple of {scale.vector}."
            docs.append(
                f"out_scale: {shape}, {scale.dtype.torch}, M contiguous, blocks of N one after the other at "
                "multiples of 16 bytes: the a_scale of a matmul whose A is D; if None, a new tensor."
                f"{multiple}"
            )
        saved += "; its rows of no group are treated as those of `out`" * bool(
            problem.groups and problem.groups.counts
        )
        if problem.saves:
            docs.append(f"saved: {self._shape('saved')}, {problem.d.torch}, {saved}.")
        return "\n".join(
            textwrap.fill(
                doc,
                width=LINE_LENGTH,
                initial_indent=" " * 8,
                subsequent_indent=" " * 12,
                break_on_hyphens=False,
            )
            for doc in docs
        )

    def _shape(self, name: str) -> str:
        """Return the axes of an argument of the kernel as a caller passes it: ``[M, K]``."""
        return shown(axes_of(self.plan.problem, self.plan.argument(name)))

    def _in_memory(self, name: str) -> str:
        """Return the axes of an argument of the kernel as it lies in memory."""
        return shown(axes_in_memory(self.plan.problem, self.plan.argument(name)))

    @property
    def _docs_of_scales(self) -> list[str]:
        """The lines about scales of blocks that multiply sums: their extents, and their memory."""
        k, docs = f"ceil(K / {self.vector('a_scale')})", list[str]()
        for name, rows in (("a_scale", "M"), ("b_scale", "N")):
            scale = self.operand(name).scale
            assert scale is not None
            groups = axes_of(self.plan.problem, self.plan.argument(name))[:-2]
            extents, memory = rows, f"{rows} contiguous, blocks of K at multiples of 16 bytes"
            if scale.format.rows > 1:
                extents = f"ceil({'2N' if self.plan.problem.gated else rows} / {scale.format.rows})"
                memory = f"rows {k} apart, rounded up to a multiple of {scale.unit}"
                memory += f", and N a multiple of {scale.format.rows}" * self.plan.problem.in_blocks
            shape = shown((*groups, extents, k))
            docs.append(f"{name}: {shape}, {scale.dtype.torch}, {memory}; else see `arrange_scales`.")
        return docs

    @property
    def _docs_of_groups(self) -> list[str]:
        """The lines about the tensor that divides rows into groups; empty without one."""
        groups = self.plan.problem.groups
        if groups is None or groups.counts is None:
            return []
        counts = f"{groups.counts}: [groups], torch.int32"
        if groups.divides_k:
            zero = "its D is zero" if self.vanishes else "its sums are zero"
            rest = f"A group may have no K: {zero}. K after the last end is ignored."
            if self.scales:
                block = self.vector("a_scale")
                reason = f"{block} of K share a scale"
                rest += f" An end that is no multiple of {block} counts as the next one: {reason}."
            return [f"{counts}: the end of each group along K, in rising order. {rest}"]
        shape = f"{counts}, up to {self.plan.group_slots} groups"
        if groups.apart:
            rest = "Other rows stay as they are in `out`, and have any values in a new D."
            return [f"{shape}: the number of rows of each. {rest}"]
        order = "the row after the last one of each, in rising order. A group may have no row."
        others = "stay as they are in `out`, and have any values in a new D"
        if self.plan.problem.gathers_a:
            index = (
                "the row of A that each row of the product is of, or of zeros if the index is outside of A"
            )
            return [f"{shape}: {order} Rows of no group {others}.", f"a_rows: [M], torch.int32: {index}."]
        if not self.plan.problem.scatters_d:
            return [f"{shape}: {order} Rows of no group {others}."]
        index = (
            "the row of D in which each row of the product is stored. A row with an index outside of D is "
            f"dropped. Of several rows with one index, D has elements of any. Rows without one {others}."
        )
        return [f"{shape}: {order}", f"d_rows: [M], torch.int32: {index}"]

    @property
    def summary(self) -> str:
        """The first line of the docstring of `matmul`."""
        steps = ", as the module's docstring has it" if epilogue_sentence(self.plan.request) else ""
        a, b = ("(a * a_scale)", "(b * b_scale)") if self.scales else ("a", "b")
        if self.plan.problem.groups and not steps:
            return f"Return a @ b of each group of {'K' if self.plan.problem.groups.divides_k else 'rows'}."
        saved = ", and the rounded sums of the accumulators" * self.plan.problem.saves
        return f"Return {formula(self.plan.request, a, b, 'c')}{steps}{saved}."

    @property
    def limits(self) -> str:
        """The extents that a kernel for a single tile takes."""
        plan = self.plan
        return f"M, N and K up to {plan.cta_tile_m}, {plan.cta_columns} and {plan.cta_tile_k}"

    @property
    def alignment(self) -> str:
        """The alignment that `matmul` requires, as a sentence without its end."""
        if self.plan.problem.copies_misaligned:
            return "Tensors not aligned to 16 bytes are copied each call"
        return "Addresses and row strides are multiples of 16 bytes"
