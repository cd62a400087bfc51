"""Check and time the experts of a Qwen3-30B-A3B layer: generated kernels beside torch's grouped_mm.

The layer has three versions: kernels of sorted rows, kernels that read and store rows by an index, and torch.

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from experts import (
    MOST_DECODE_TOKENS,
    GeneratedMlp,
    IndexedMlp,
    Kernels,
    TorchMlp,
    Weights,
    combine,
    combine_neighbours,
    gather,
    index_by_expert,
    layer,
    layer_by_index,
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
"""Limits of `Errors`. The values between parts are bf16, with relative errors of up to 2**-8."""


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


@dataclass(frozen=True)
class Versions:
    """The MLP of each version of the layer, all with the same weights."""

    generated: GeneratedMlp
    indexed: IndexedMlp
    torch: TorchMlp

    def layers(self, inputs: Inputs) -> Iterator[tuple[str, Call]]:
        """Yield the name of each version, and the call of its layer."""
        call, given = functools.partial, (inputs.x, inputs.logits)
        yield "generated", call(layer, *given, self.generated, TOP_K)
        yield "indexed", call(layer_by_index, *given, self.indexed, TOP_K)
        yield "torch", call(layer, *given, self.torch, TOP_K)


def kernels_of(*parts: str) -> Iterator[Kernels]:
    """Yield the kernels of modules with these names, an up and a down projection: decoding, then prefill."""
    for regime in ("decode", "prefill"):
        yield Kernels(*(importlib.import_module(f"{part}_{regime}").matmul for part in parts))


def versions_of(folder: Path, weights: Weights) -> Versions:
    """Return the versions of the layer, with the generated modules of a folder."""
    sys.path.insert(0, str(folder))
    generated = GeneratedMlp(weights, *kernels_of("up", "down"))
    indexed = IndexedMlp(weights, *kernels_of("up_gather", "down_scatter"))
    return Versions(generated, indexed, TorchMlp(weights))


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


def check(versions: Versions) -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of each version, and its difference from torch's, for each number of tokens.

    Raises:
        SystemExit: An error is too large, or a second call of generated kernels gives other bits.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for tokens in CHECKED_TOKENS:
        inputs = Inputs.drawn(tokens, seed=tokens)
        expected = reference(inputs.x, inputs.logits, versions.torch.weights, TOP_K)
        results: dict[str, Tensor] = {}
        for name, of_layer in versions.layers(inputs):
            results[name] = of_layer()
            if name != "torch" and not torch.equal(results[name], of_layer()):
                raise SystemExit(f"{tokens} tokens: a second call of {name} gives other bits")
        errors = {name: Errors.of(d, expected) for name, d in results.items()}
        of_torch = results.pop("torch").float()
        errors |= {f"{name} - torch": Errors.of(d, of_torch) for name, d in results.items()}
        found[str(tokens)] = {name: asdict(each) for name, each in errors.items()}
        said = "  ".join(f"{name} {each.largest:.4f} {each.norm:.4f}" for name, each in errors.items())
        say(f"{tokens:6} tokens  errors: {said}")
        if not all(each.allowed for each in errors.values()):
            raise SystemExit(f"{tokens} tokens: an error is too large")
    return found


def parts_of(inputs: Sequence[Inputs], versions: Versions) -> dict[str, dict[str, list[Call]]]:
    """Return the calls to time of the parts that two versions share, and of each version."""
    call, ours, theirs, by_index = functools.partial, versions.generated, versions.torch, versions.indexed
    parts: dict[str, dict[str, list[Call]]] = {"shared": {}, "generated": {}, "indexed": {}, "torch": {}}

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
        indexed = add("indexed", "index", call(index_by_expert, weight, expert, EXPERTS))
        h = add("indexed", "up", call(by_index.up, each.x, indexed))
        d = add("indexed", "down", call(by_index.down, h, indexed, len(each.x)))
        add("indexed", "combine", call(combine_neighbours, d, TOP_K))
        add("indexed", "mlp", call(by_index, each.x, indexed))
        products = add("torch", "up", call(theirs.up, rows, pairs))
        h = add("torch", "activation", call(theirs.activation, products))
        d = add("torch", "down", call(theirs.down, h, pairs))
        add("torch", "weigh", call(theirs.weigh, d, pairs))
        for version, mlp in (("generated", ours), ("torch", theirs)):
            add(version, "mlp", call(mlp, rows, pairs))
        for version, of_layer in versions.layers(each):
            add(version, "layer", of_layer)
    return parts


def point(tokens: int, versions: Versions) -> dict[str, Any]:
    """Return the times for one number of tokens, in us, and how many times as fast the generated kernels are.

    Ratios are of torch's time: of the MLP, which begins with gathered rows, and of the layer of each version.

    A graph calls with several inputs one after the other: with few tokens each input takes other experts, so
    that their weights come from memory and not from L2.
    """
    inputs = [Inputs.drawn(tokens, seed) for seed in range(max(2, min(16, 128 // tokens)))]
    parts = parts_of(inputs, versions)
    flat = {f"{version}.{part}": calls for version, of in parts.items() for part, calls in of.items()}
    times = microseconds(flat)
    us = {version: {part: times[f"{version}.{part}"] for part in of} for version, of in parts.items()}
    compared = {
        "mlp_ratio": ("mlp", "generated"),
        "layer_ratio": ("layer", "generated"),
        "indexed_layer_ratio": ("layer", "indexed"),
    }
    ratios = {
        name: round(us["torch"][part] / us[version][part], 3) for name, (part, version) in compared.items()
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
    versions = versions_of(given.kernels, weights)
    record: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": importlib.import_module("triton").__version__,
        "errors": check(versions),
        "points": [],
    }
    for tokens in TIMED_TOKENS if given.time else ():
        found = point(tokens, versions)
        record["points"].append(found)
        mlp, sorted_rows, indexed = (found[f"{name}_ratio"] for name in ("mlp", "layer", "indexed_layer"))
        layers = f"layer {sorted_rows:.2f}, by an index {indexed:.2f}"
        say(f"{tokens:6} tokens  MLP {mlp:.2f} times torch, {layers}")
        given.time.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
