"""Check and time the experts of a Qwen3-30B-A3B layer: generated kernels beside torch's grouped_mm.

    gemmgen build examples/moe/specs/*.yaml --out build/moe
    python examples/moe/layer.py build/moe                          # checks the numbers
    python examples/moe/layer.py build/moe --time build/times.json  # also times, and writes a record

Needs torch 2.10 or later, Triton, the folder of the generated modules, and a Hopper GPU. It needs no gemmgen.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from experts import (
    MOST_DECODE_TOKENS,
    GeneratedMlp,
    Kernels,
    TorchMlp,
    Weights,
    combine,
    gather,
    layer,
    reference,
    route,
    sort_by_expert,
)
from graphs import Call, microseconds
from torch import Tensor

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 2048, 768, 128, 8
CHECKED_TOKENS = (1, 37, MOST_DECODE_TOKENS, MOST_DECODE_TOKENS + 1, 700)
TIMED_TOKENS = (1, 8, 64, 512, 4096, 16384)
LARGEST_ERROR, LARGEST_NORM = 0.1, 0.01
"""Limits of `Errors`. The values between parts are bf16, with relative errors of up to 2**-9."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of the layer for some tokens."""

    x: Tensor
    """bf16 [tokens, hidden]."""
    logits: Tensor
    """fp32 [tokens, experts]."""

    @classmethod
    def drawn(cls, tokens: int, seed: int) -> Inputs:
        """Return random inputs. The popularity of experts differs: a few have several times the mean."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        normal = functools.partial(torch.randn, generator=generator, device="cuda")
        logits = normal(tokens, EXPERTS) + normal(EXPERTS)
        return cls(normal(tokens, HIDDEN).bfloat16(), logits)


def drawn_weights() -> Weights:
    """Return random weights, each with a variance of one over its K."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    shapes = (EXPERTS, 2 * INTERMEDIATE, HIDDEN), (EXPERTS, HIDDEN, INTERMEDIATE)
    made = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    return Weights(*(each.normal_(std=each.shape[2] ** -0.5, generator=generator) for each in made))


def generated(folder: Path, weights: Weights) -> GeneratedMlp:
    """Return the MLP from the generated modules of a folder."""
    sys.path.insert(0, str(folder))
    of_regimes = (
        Kernels(*(importlib.import_module(f"{part}_{regime}").matmul for part in ("up", "down")))
        for regime in ("decode", "prefill")
    )
    return GeneratedMlp(weights, *of_regimes)


@dataclass(frozen=True)
class Errors:
    """The errors of a result [tokens, hidden]."""

    largest: float
    """Largest error of an element, over the root mean square of the expected row; inf if one is NaN."""
    norm: float
    """Norm of all errors, over the norm of the expected result; inf if an error is NaN."""

    @classmethod
    def of(cls, d: Tensor, expected: Tensor) -> Errors:
        """Return the errors of d beside the expected fp32 result."""
        error = (d.float() - expected).abs().nan_to_num(torch.inf)
        largest = error / expected.square().mean(dim=1, keepdim=True).sqrt()
        norm = (error.square().sum() / expected.square().sum()).sqrt()
        return cls(round(float(largest.max()), 5), round(float(norm), 5))

    @property
    def allowed(self) -> bool:
        """True if both are within their limits."""
        return self.largest <= LARGEST_ERROR and self.norm <= LARGEST_NORM


def check(ours: GeneratedMlp, theirs: TorchMlp) -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of each version, and of their difference, for each number of tokens.

    Raises:
        SystemExit: An error is too large, or a second call gives other bits.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for tokens in CHECKED_TOKENS:
        inputs = Inputs.drawn(tokens, seed=tokens)
        expected = reference(inputs.x, inputs.logits, ours.weights, TOP_K)
        d, of_torch = (layer(inputs.x, inputs.logits, mlp, TOP_K) for mlp in (ours, theirs))
        if not torch.equal(d, layer(inputs.x, inputs.logits, ours, TOP_K)):
            raise SystemExit(f"{tokens} tokens: a second call gives other bits")
        errors = {
            "generated": Errors.of(d, expected),
            "torch": Errors.of(of_torch, expected),
            "difference": Errors.of(d, of_torch.float()),
        }
        found[str(tokens)] = {name: asdict(each) for name, each in errors.items()}
        said = "  ".join(f"{name} {each.largest:.4f} {each.norm:.4f}" for name, each in errors.items())
        say(f"{tokens:6} tokens  errors: {said}")
        if not all(each.allowed for each in errors.values()):
            raise SystemExit(f"{tokens} tokens: an error is too large")
    return found


def parts_of(
    inputs: Sequence[Inputs], ours: GeneratedMlp, theirs: TorchMlp
) -> dict[str, dict[str, list[Call]]]:
    """Return the calls to time of the parts that both versions share, and of each version."""
    call = functools.partial
    parts: dict[str, dict[str, list[Call]]] = {"shared": {}, "generated": {}, "torch": {}}

    def add(version: str, part: str, timed: Call) -> Any:
        parts[version].setdefault(part, []).append(timed)
        return timed()

    for each in inputs:
        weight, expert = add("shared", "route", call(route, each.logits, TOP_K))
        pairs = add("shared", "sort", call(sort_by_expert, weight, expert, EXPERTS))
        rows = add("shared", "gather", call(gather, each.x, pairs))
        h = add("generated", "up", call(ours.up, rows, pairs))
        d = add("generated", "down", call(ours.down, h, pairs))
        add("shared", "combine", call(combine, d, pairs))
        products = add("torch", "up", call(theirs.up, rows, pairs))
        h = add("torch", "activation", call(theirs.activation, products))
        d = add("torch", "down", call(theirs.down, h, pairs))
        add("torch", "weigh", call(theirs.weigh, d, pairs))
        for version, mlp in (("generated", ours), ("torch", theirs)):
            add(version, "mlp", call(mlp, rows, pairs))
            add(version, "layer", call(layer, each.x, each.logits, mlp, TOP_K))
    return parts


def point(tokens: int, ours: GeneratedMlp, theirs: TorchMlp) -> dict[str, Any]:
    """Return the times for one number of tokens, in us, and how many times as fast the generated kernels are.

    A graph calls with several inputs one after the other: with few tokens each input takes other experts, so
    that their weights come from memory and not from L2.
    """
    inputs = [Inputs.drawn(tokens, seed) for seed in range(max(2, min(16, 128 // tokens)))]
    parts = parts_of(inputs, ours, theirs)
    flat = {f"{version}.{part}": calls for version, of in parts.items() for part, calls in of.items()}
    times = microseconds(flat)
    us = {version: {part: times[f"{version}.{part}"] for part in of} for version, of in parts.items()}
    ratios = {
        f"{part}_ratio": round(us["torch"][part] / us["generated"][part], 3) for part in ("mlp", "layer")
    }
    kernels = "decode" if tokens <= MOST_DECODE_TOKENS else "prefill"
    return {"tokens": tokens, "kernels": kernels, "us": us, **ratios}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Check the numbers, and with --time write a record of times."""
    parser = argparse.ArgumentParser(description="Check the experts of a Qwen3-30B-A3B layer.")
    parser.add_argument("kernels", type=Path, help="folder of the generated modules")
    parser.add_argument("--time", type=Path, metavar="RECORD", help="also time, and write this JSON file")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a Hopper GPU")
    weights = drawn_weights()
    ours, theirs = generated(given.kernels, weights), TorchMlp(weights)
    record: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": importlib.import_module("triton").__version__,
        "errors": check(ours, theirs),
        "points": [],
    }
    for tokens in TIMED_TOKENS if given.time else ():
        found = point(tokens, ours, theirs)
        record["points"].append(found)
        say(f"{tokens:6} tokens  MLP {found['mlp_ratio']:.2f} times torch, layer {found['layer_ratio']:.2f}")
        given.time.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
