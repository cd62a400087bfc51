"""The speed of transformers' models with kernels of libraries in place of torch's, beside the same models.

On a Hopper GPU, with transformers 5 and the two libraries on the path: ``python -m benchmarks.harness.models
LINEAR_LIBRARY EXPERT_LIBRARY``. It prints JSON. The models have random weights and few layers, with the sizes
of Llama 8B and of Qwen3-MoE 30B-A3B.

Each token is a sequence of its own, so that attention takes little time. A ratio is torch's time over ours:
the median over pairs of samples that alternate, with the least and the most; compiled models are timed by
torch's before and after all of ours. Eager calls are timed on the
host's clock from an idle GPU to an idle GPU; for few tokens they take as long as the host does.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from gemmgen.integrations import replace_grouped_mm, replace_linear

WARM_UP, PAIRS, CALLS = 3, 15, 10
TOKENS, COMPILED_TOKENS, VOCABULARY = (1, 4, 16, 64), 16, 32000

Forward = Callable[[Tensor], Tensor]
Kernels = Callable[[], AbstractContextManager[object]]
"""Makes the context in which a model's kernels are ours."""


def llama(layers: int) -> nn.Module:
    """Return a Llama with the sizes of the model of 8B parameters, in bf16 on the GPU."""
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
    )
    return transformers.LlamaForCausalLM(config).eval()


def qwen3_moe(layers: int) -> nn.Module:
    """Return a Qwen3-MoE with the sizes of the model of 30B parameters, in bf16 on the GPU."""
    transformers: Any = import_module("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        vocab_size=VOCABULARY,
    )
    config._experts_implementation = "grouped_mm"
    return transformers.Qwen3MoeForCausalLM(config).eval()


def forward_of(model: nn.Module) -> Forward:
    """Return the function from token ids [tokens, 1] to the logits."""
    return lambda ids: model(ids, use_cache=False, logits_to_keep=1).logits


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a graph of the call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call: Callable[[], object]) -> float:
    """Return the mean time of a call, from an idle GPU to an idle GPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / CALLS


def compared(ours: Callable[[], object], torchs: Callable[[], object], kernels: Kernels) -> dict[str, float]:
    """Return the times of two calls, and torch's over ours in alternating pairs of samples."""
    samples: list[tuple[float, float]] = []
    for _ in range(WARM_UP + PAIRS):
        of_torch = milliseconds(torchs)
        with kernels():
            samples.append((of_torch, milliseconds(ours)))
    return figures(samples[WARM_UP:])


def figures(samples: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of torch's and our times, and of the ratios."""
    ratios = [theirs / own for theirs, own in samples]
    return {
        "torch_ms": round(statistics.median(theirs for theirs, _ in samples), 3),
        "ours_ms": round(statistics.median(own for _, own in samples), 3),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def measured(model: nn.Module, replaced: nn.Module, kernels: Kernels) -> dict[str, Any]:
    """Return the figures of a model, and of a copy whose kernels are ours within `kernels`."""
    theirs, ours = forward_of(model), forward_of(replaced)
    found: dict[str, dict[int, Any]] = {"eager": {}, "graph": {}, "reduce-overhead": {}}
    with torch.no_grad():
        for tokens in TOKENS:
            ids = torch.randint(0, VOCABULARY, (tokens, 1), device="cuda")
            call_ours, call_torch = partial(ours, ids), partial(theirs, ids)
            with kernels():
                got = call_ours().double()
                graph = captured(call_ours)
            wanted = call_torch().double()
            error = round(((got - wanted).square().sum() / wanted.square().sum()).sqrt().item(), 5)
            found["eager"][tokens] = compared(call_ours, call_torch, kernels) | {"error": error}
            found["graph"][tokens] = compared(graph, captured(call_torch), kernels)
        ids = torch.randint(0, VOCABULARY, (COMPILED_TOKENS, 1), device="cuda")
        compiled = [cast(Any, torch).compile(each, mode="reduce-overhead") for each in (ours, theirs)]
        call_ours, call_torch = (partial(each, ids) for each in compiled)
        before = [milliseconds(call_torch) for _ in range(WARM_UP + PAIRS)][WARM_UP:]
        with kernels():  # one for all calls: torch compiles again for each context
            within = [milliseconds(call_ours) for _ in range(WARM_UP + PAIRS)][WARM_UP:]
        after = [milliseconds(call_torch) for _ in range(PAIRS)]
        found["reduce-overhead"][COMPILED_TOKENS] = figures(
            [(sum(both) / 2, own) for *both, own in zip(before, after, within, strict=True)]
        )
    return found


def main() -> None:
    """Measure, and print a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("linear_library")
    parser.add_argument("expert_library")
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    linear, experts = import_module(arguments.linear_library), import_module(arguments.expert_library)
    torch.set_default_dtype(torch.bfloat16)
    contexts: dict[Callable[[int], nn.Module], Kernels] = {
        llama: ExitStack,
        qwen3_moe: partial(replace_grouped_mm, experts),
    }
    models: dict[str, Any] = {}
    for make, kernels in contexts.items():
        with torch.device("cuda"):
            model = make(arguments.layers)
        replaced = copy.deepcopy(model)
        replace_linear(replaced, linear)
        models[make.__name__] = measured(model, replaced, kernels)
        cast(Any, torch).compiler.reset()
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": import_module("triton").__version__,
        "transformers": import_module("transformers").__version__,
        "libraries": [arguments.linear_library, arguments.expert_library],
        "layers": arguments.layers,
        "models": models,
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
