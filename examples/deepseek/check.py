"""Check and time the fp8 linears of a DeepSeek-V3 layer: generated kernels beside torch.

Run it in a checkout of gemmgen, because the program is a package with `examples.moe`:

    gemmgen build examples/deepseek/specs/*.yaml --out build/deepseek
    python -m examples.deepseek.check build/deepseek                           # checks the numbers
    python -m examples.deepseek.check build/deepseek --time build/times.json   # also writes a record of times

Needs torch 2.10 or later, Triton, the folder of the generated modules, and a Hopper GPU with 80 GB. It needs
no installed gemmgen. The weights are random, with the names and layouts of a checkpoint.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.deepseek.checkpoint import Layer, Sizes, Weight, drawn, laid_out, read
from examples.deepseek.layer import Decoder, Result
from examples.deepseek.linears import (
    MOST_DECODE_TOKENS,
    Generated,
    Linears,
    Quantised,
    Reference,
    TorchLinears,
    bf16_weights,
    dequantised,
    quantise,
    unquantised,
)
from examples.moe.graphs import microseconds

CHECKED_TOKENS = (1, 37, MOST_DECODE_TOKENS, MOST_DECODE_TOKENS + 1, 700)
TIMED_TOKENS = (1, 8, 64, 512, 4096)
ROUNDING, ROUNDING_E4M3 = 2.0**-8, 2.0**-4
"""Largest error of an element when it is rounded to bf16, and to e4m3, over its magnitude."""
SUMS = 2.0**-7
"""Error that is allowed for the sums of an element, over the root mean square of its row.

The tensor cores keep 14 bits of a sum of 128 products. The modelled errors of such sums are 1.3e-4 to 3e-4 of
the root mean square (docs/numerics.md). A gate multiplies them, and the largest of millions counts.
"""
LARGEST_NORM = 2.5e-3
"""Largest norm of the errors of a linear, over the norm of its result.

Rounding to bf16 alone has 1.7e-3 on average, and up to 1.9e-3 if the result has few elements.
"""
LARGEST_NORM_E4M3 = 3.5e-2
"""The same of an up projection, whose result leaves as e4m3: rounding alone has 2.6e-2."""
LARGEST_DIFFERENCE = 0.1
"""Largest norm of the difference of a layer from the reference, over the norm of what the layer adds to x.

A number that differs a little before it is quantised may become the next number of e4m3, which is 9 % away on
average. If numbers have a relative error of r, these steps have a mean square of about 0.07 * r. The errors
of bf16, 0.2 %, so become 1 % after one quantisation, 3 % after two, and 6 % after three.
"""
MOST_OF_FORMAT = 1.2
"""Largest error of a layer beside the same layer without quantised activations, over the reference's error.

The reference only has the error of quantisation, and the kernels may add a fifth of it.
"""
COLD_BYTES = 128 << 20
"""Bytes of the weights of timed calls at least, so that weights come from memory and not from L2."""
MOST_COPIES = 16


@dataclass(frozen=True)
class Errors:
    """The errors of a result [rows, N]."""

    largest: float
    """Largest error of an element, over the error that is allowed for it; inf if one is NaN."""
    norm: float
    """Norm of all errors, over the norm of the expected result; inf if an error is NaN."""
    largest_norm: float = LARGEST_NORM
    """The largest norm that is allowed."""

    @classmethod
    def of(cls, d: Tensor, expected: Tensor) -> Errors:
        """Return the errors of d in bf16, or of scales, beside the expected fp64 result."""
        return cls._of(d, expected, ROUNDING, LARGEST_NORM)

    @classmethod
    def of_e4m3(cls, d: Quantised, expected: Tensor) -> Errors:
        """Return the errors of e4m3 values times their scales beside the expected fp64 result."""
        numbers = dequantised(d.values, d.scales, 1, torch.float64)
        return cls._of(numbers, expected, ROUNDING_E4M3, LARGEST_NORM_E4M3)

    @classmethod
    def _of(cls, d: Tensor, expected: Tensor, rounding: float, largest_norm: float) -> Errors:
        error = (d.to(expected.dtype) - expected).abs().nan_to_num(torch.inf)
        of_row = expected.square().mean(dim=1, keepdim=True).sqrt()
        largest = error / (rounding * expected.abs() + SUMS * of_row)
        norm = round(float(error.norm() / expected.norm()), 6)
        return cls(round(float(largest.max()), 4), norm, largest_norm)

    @property
    def allowed(self) -> bool:
        """True if both are within their limits."""
        return self.largest <= 1 and self.norm <= self.largest_norm


@dataclass
class Checked:
    """Linears whose results are compared with the reference for the same inputs."""

    linears: Linears
    reference: Reference
    errors: dict[str, Errors] = field(default_factory=dict)

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        """Return the result of a linear, and keep its errors."""
        d = self.linears(name, x, **operands)
        self.errors[name] = Errors.of(d, self.reference(name, x, **operands))
        refuse_other_bits(name, (d, self.linears(name, x, **operands)))
        return d

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        """Return the result of an up projection, and keep the errors of its values and of its scales."""
        d = self.linears.up(name, x, **operands)
        expected = self.reference(name, x, **operands)
        self.errors[name] = Errors.of_e4m3(d, expected)
        self.errors[f"scales of {name}"] = Errors.of(d.scales, quantise(expected).scales.double())
        again = self.linears.up(name, x, **operands)
        refuse_other_bits(name, (d.values, again.values), (d.scales, again.scales))
        return d


def refuse_other_bits(name: str, *results: tuple[Tensor, Tensor]) -> None:
    """Raise SystemExit if the two tensors of a pair differ in any bit."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    for first, second in results:
        bits = integers[first.itemsize]
        if (first.view(bits) != second.view(bits)).any():
            raise SystemExit(f"{name}: a second call gives other bits")


@dataclass
class Recorder:
    """Linears that keep their calls."""

    linears: Linears
    calls: dict[str, tuple[Quantised, dict[str, Tensor]]] = field(default_factory=dict)

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        """Return the result of a linear, and keep its operands."""
        self.calls[name] = x, operands
        return self.linears(name, x, **operands)

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        """Return the result of an up projection, and keep its operands."""
        self.calls[name] = x, operands
        return self.linears.up(name, x, **operands)


def inputs(tokens: int, sizes: Sizes, seed: int, device: str = "cuda") -> Tensor:
    """Return a random x [tokens, hidden] in bf16."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(tokens, sizes.hidden, generator=generator, device=device).bfloat16()


def regime_of(tokens: int) -> str:
    """Return the regime whose kernels compute this number of tokens."""
    return "decode" if tokens <= MOST_DECODE_TOKENS else "prefill"


def generated(folder: Path, layer: Layer) -> dict[str, Generated]:
    """Return the linears of each regime from the modules of a folder."""
    sys.path.insert(0, str(folder))

    def of(regime: str) -> Generated:
        modules = {name: importlib.import_module(f"{name}_{regime}") for name in layer.linears}
        return Generated(layer.linears, {name: module.matmul for name, module in modules.items()})

    return {regime: of(regime) for regime in ("decode", "prefill")}


def distance(d: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference, over the norm of the expected tensor."""
    return round(float((d.double() - expected.double()).norm() / expected.double().norm()), 5)


def layer_errors(found: Result, x: Tensor, layer: Layer, sizes: Sizes) -> dict[str, float]:
    """Return the differences of a layer from the reference, and of both from a layer without quantisation.

    All are of what the layer adds to x, and with the experts of the layer.
    """
    reference, exact = Reference(layer.linears), Reference(layer.linears, unquantised)
    expected = Decoder(layer, sizes, reference)(x.double(), found.expert).d - x
    ideal = Decoder(layer, sizes, exact, unquantised)(x.double(), found.expert).d - x
    added = found.d.double() - x
    return {
        "reference": distance(added, expected),
        "unquantised": distance(added, ideal),
        "format": distance(expected, ideal),
    }


def check(layer: Layer, sizes: Sizes, linears: Linears, x: Tensor) -> dict[str, Any]:
    """Return the errors of each linear and of the layer.

    Raises:
        SystemExit: An error is too large, or a second call of a linear gives other bits.
    """
    checked = Checked(linears, Reference(layer.linears))
    found = Decoder(layer, sizes, checked)(x)
    for name, errors in checked.errors.items():
        if not errors.allowed:
            raise SystemExit(f"{len(x)} tokens: the errors of {name} are too large: {errors}")
    of_layer = layer_errors(found, x, layer, sizes)
    is_near = of_layer["reference"] <= LARGEST_DIFFERENCE
    if not (is_near and of_layer["unquantised"] <= MOST_OF_FORMAT * of_layer["format"]):
        raise SystemExit(f"{len(x)} tokens: the errors of the layer are too large: {of_layer}")
    return {"linears": {name: asdict(each) for name, each in checked.errors.items()}, "layer": of_layer}


def copies(weight: Weight) -> Iterator[Weight]:
    """Yield a weight and copies of it, of COLD_BYTES together."""
    yield weight
    for _ in range(min(MOST_COPIES, COLD_BYTES // weight.values.nbytes)):
        yield Weight(weight.values.clone(), laid_out(weight.scales.clone()))


def timed(
    name: str, recorded: list[Recorder], ours: Generated, bf16: dict[str, Tensor]
) -> dict[str, float | str | dict[str, str]]:
    """Return the times of a linear in us, of its kernel and of a call of torch, and the results' difference.

    The call is the first one of `TorchLinears.calls` that torch does not refuse. The reasons for others are
    under `refused`. If torch refuses all of them, there is the time of the kernel alone.
    """
    made = [(weight, *each.calls[name]) for weight in copies(ours.weights[name]) for each in recorded]
    own = [
        functools.partial(Generated({name: weight}, ours.matmuls), name, x, **operands)
        for weight, x, operands in made
    ]
    of_kernel: Any = own[0]()
    if isinstance(of_kernel, tuple):
        of_kernel = dequantised(*of_kernel, 1, torch.float32)
    refused: dict[str, str] = {}
    for call in TorchLinears(ours.weights, bf16).calls(name):
        try:
            others = [
                TorchLinears({name: weight}, bf16).prepared(name, x, call=call, **operands)
                for weight, x, operands in made
            ]
            difference = distance(of_kernel, others[0]())
            times = microseconds({f"{name} generated": own, f"{name} torch": others})
        except (RuntimeError, ValueError) as error:  # whatever torch or its libraries refuse
            refused[call] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        us = {arm.split()[1]: time for arm, time in times.items()}
        return {**us, "difference": difference, "call": call, "refused": refused}
    return {"generated": microseconds({f"{name} generated": own})[f"{name} generated"], "refused": refused}


def point(
    tokens: int, layer: Layer, sizes: Sizes, ours: Generated, bf16: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the times of each linear in us, and the ratios of torch's time to that of the kernel.

    The sums of all times are of the linears that torch computes too.
    """
    recorded = [Recorder(ours) for _ in range(2)]
    for seed, recorder in enumerate(recorded):
        Decoder(layer, sizes, recorder)(inputs(tokens, sizes, seed))
    us: dict[str, dict[str, Any]] = {name: timed(name, recorded, ours, bf16) for name in layer.linears}
    compared = {name: each for name, each in us.items() if "torch" in each}
    ratios = {name: round(each["torch"] / each["generated"], 3) for name, each in compared.items()}
    totals = {arm: round(sum(each[arm] for each in compared.values()), 2) for arm in ("generated", "torch")}
    if compared:
        ratios["all"] = round(totals["torch"] / totals["generated"], 3)
    return {"tokens": tokens, "kernels": regime_of(tokens), "us": us, "all": totals, "ratios": ratios}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Check the numbers, and with --time write a record of times."""
    parser = argparse.ArgumentParser(description="Check the fp8 linears of a DeepSeek-V3 layer.")
    parser.add_argument("kernels", type=Path, help="folder of the generated modules")
    parser.add_argument("--time", type=Path, metavar="RECORD", help="also time, and write this JSON file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a Hopper GPU")
    sizes = Sizes()
    layer = read(dict(drawn(sizes)), sizes)
    of_regime = generated(given.kernels, layer)
    record: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": importlib.import_module("triton").__version__,
        "errors": {},
        "points": [],
    }
    for tokens in CHECKED_TOKENS:
        found = check(layer, sizes, of_regime[regime_of(tokens)], inputs(tokens, sizes, tokens))
        record["errors"][str(tokens)] = found
        largest = max(each["norm"] / each["largest_norm"] for each in found["linears"].values())
        say(f"{tokens:6} tokens  errors: linears {largest:.2f} of their limits, layer {found['layer']}")
    if not given.time:
        return
    bf16 = {name: bf16_weights(layer.linears[name]) for name in ("experts_up", "experts_down")}
    for tokens in TIMED_TOKENS:
        found = point(tokens, layer, sizes, of_regime[regime_of(tokens)], bf16)
        record["points"].append(found)
        said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratios"].items())
        say(f"{tokens:6} tokens  times torch: {said}")
        for name, each in found["us"].items():
            for call, reason in each["refused"].items():
                say(f"{tokens:6} tokens  torch refuses {call} of {name}: {reason}")
        given.time.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
