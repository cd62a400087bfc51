"""A wrong output is told by its own name, with the wrong elements, the first of them, and its last write."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from modules import made, spec_file
from mutants.mutant import changed

from gemmgen.verify.launches import order_launch, ring_launch
from gemmgen.verify.simulation import simulate_product

pytestmark = pytest.mark.simulator


@dataclass(frozen=True)
class Fault:
    """One output that a changed module leaves wrong."""

    stem: str
    change: tuple[str, str]
    argument: str
    """Of the kernel."""
    output: str
    """In a call of `matmul`."""
    write: str
    """The line that writes it."""


FAULTS = {
    "sums that are saved": Fault(
        "h100_bf16_grouped_saved",
        ("    gate = gate.to(args.saved_desc.dtype)\n", "    gate = (gate + 9).to(args.saved_desc.dtype)\n"),
        "saved_desc",
        "saved",
        "tma.async_store(args.saved_desc, [0,",
    ),
    "scales of D": Fault(
        "h100_bf16_masked_quantized",
        (
            "gl.store(scales, gl.div_rn(largest, D_LARGEST)",
            "gl.store(scales, gl.div_rn(largest, D_LARGEST) * 4",
        ),
        "d_scale_ptr",
        "out_scale",
        "gl.store(scales, ",
    ),
    "D": Fault(
        "h100_bf16_masked",
        ("d_smem.store(tile.to(args.d_desc.dtype))", "d_smem.store((tile * 2).to(args.d_desc.dtype))"),
        "d_desc",
        "d",
        "tma.async_store(args.d_desc, ",
    ),
}


@pytest.mark.parametrize("inputs", ["integers", "normal"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_output_is_told_by_name_element_and_line(name: str, inputs: str) -> None:
    fault = FAULTS[name]
    product = made(spec_file(fault.stem))
    text = changed(product.module, (fault.change,), fault.stem)
    launch = ring_launch(product.plan, ("lazy",)) if inputs == "integers" else order_launch(product.plan)
    simulation = simulate_product(replace(product, module=text), (launch,))
    problems = simulation.problems
    assert all(problem.kind == "wrong-numbers" for problem in problems)
    told = {problem.name: problem for problem in problems}
    assert fault.argument in told
    # Numbers of D are its elements times its scales; nothing else is wrong.
    assert set(told) <= {fault.argument, "d_desc"}
    assert ("d_desc" in told) == (fault.output != "saved")
    problem = told[fault.argument]
    place = rf"of {fault.output} are wrong, the first at \[\d+(, \d+)+\]: -?[\d.e+-]+, not -?[\d.e+-]+"
    assert re.fullmatch(rf"\d+x\d+x\d+: [\d,]+ of [\d,]+ elements {place}", problem.text)
    (line,) = problem.lines
    assert fault.write in text.splitlines()[line - 1]
    (diagnostic,) = (each for each in simulation.diagnostics if each.field == fault.argument)
    assert diagnostic.line == line
