"""The speed of transformers' models with kernels of libraries in place of torch's, beside the same models.

On a Hopper GPU, with transformers 5, and with the library of linear layers and the modules of `EXPERTS` on
the path: ``python -m benchmarks.harness.models [--linear LIBRARY] [--compiled] MODEL…``. It prints JSON. The
models have random weights and few layers, with the sizes of Llama 8B, of Qwen3-MoE 30B-A3B and of gpt-oss
20B. A layer of experts is timed apart too, in CUDA graphs.

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
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from gemmgen.integrations.experts import Experts
from gemmgen.integrations.transformers import accelerate_model

WARM_UP, PAIRS, CALLS = 3, 15, 10
TOKENS, COMPILED_TOKENS, VOCABULARY = (1, 4, 16, 64, 512), 16, 32000
EXPERT_TOKENS = (1, 16, 64, 512, 8192)
"""Tokens of a layer of experts alone."""
EXPERTS = {
    "qwen3_moe": ("up_gather", "down_scatter"),
    "gpt_oss": ("gpt_oss_up", "gpt_oss_down"),
}
"""The modules of a model's experts, of examples/, without the end that says for how many tokens."""
DECODE_ROWS = 4
"""Most rows of an expert, in the mean, for the modules of decoding."""

Forward = Callable[[Tensor], Tensor]


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


def gpt_oss(layers: int) -> nn.Module:
    """Return a gpt-oss with the sizes of the model of 20B parameters, its experts in bf16, on the GPU."""
    transformers: Any = import_module("transformers")
    config = transformers.GptOssConfig(
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        vocab_size=VOCABULARY,
    )
    config._experts_implementation = "grouped_mm"
    model = transformers.GptOssForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "experts" in name:  # transformers gives them no numbers
            nn.init.normal_(parameter, std=0.02)
    return model


MODELS: dict[str, Callable[[int], nn.Module]] = {"llama": llama, "qwen3_moe": qwen3_moe, "gpt_oss": gpt_oss}


def experts_of(name: str) -> Experts | None:
    """Return the kernels of a model's experts; None if it has none."""
    if name not in EXPERTS:
        return None
    up, down, *few = (
        import_module(f"{stem}_{regime}") for regime in ("prefill", "decode") for stem in EXPERTS[name]
    )
    return Experts(up, down, few_rows={DECODE_ROWS: (few[0], few[1])})


def forward_of(model: nn.Module) -> Forward:
    """Return the function from token ids [tokens, 1] to the logits.

    Sequences of one token need no mask. It is given, because transformers makes that of gpt-oss with a copy
    from the host, which no graph can hold.
    """
    kinds: Any = {*(getattr(cast(Any, model).config, "layer_types", None) or ())}

    def forward(ids: Tensor) -> Tensor:
        mask = torch.zeros(len(ids), 1, 1, 1, device=ids.device, dtype=torch.bfloat16)
        masks = dict.fromkeys(kinds, mask) if len(kinds) > 1 else None
        return model(ids, attention_mask=masks, use_cache=False, logits_to_keep=1).logits

    return forward


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


def compared(ours: Callable[[], object], torchs: Callable[[], object]) -> dict[str, float]:
    """Return the times of two calls, and torch's over ours in alternating pairs of samples."""
    samples = [(milliseconds(torchs), milliseconds(ours)) for _ in range(WARM_UP + PAIRS)]
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


def error_of(got: Tensor, wanted: Tensor) -> float:
    """Return the error, relative to the norm."""
    got, wanted = got.double(), wanted.double()
    return round(((got - wanted).square().sum() / wanted.square().sum()).sqrt().item(), 5)


def measured(model: nn.Module, replaced: nn.Module, *, is_compiled: bool) -> dict[str, Any]:
    """Return the figures of a model and of a copy whose kernels are ours: also compiled, if asked for."""
    theirs, ours = forward_of(model), forward_of(replaced)
    found: dict[str, dict[int, Any]] = {"eager": {}, "graph": {}, "reduce-overhead": {}}
    for tokens in TOKENS:
        ids = torch.randint(0, VOCABULARY, (tokens, 1), device="cuda")
        call_ours, call_torch = partial(ours, ids), partial(theirs, ids)
        error = error_of(call_ours(), call_torch())
        found["eager"][tokens] = compared(call_ours, call_torch) | {"error": error}
        found["graph"][tokens] = compared(captured(call_ours), captured(call_torch))
    if not is_compiled:
        return found
    ids = torch.randint(0, VOCABULARY, (COMPILED_TOKENS, 1), device="cuda")
    compiled = [cast(Any, torch).compile(each, mode="reduce-overhead") for each in (ours, theirs)]
    call_ours, call_torch = (partial(each, ids) for each in compiled)
    found["reduce-overhead"][COMPILED_TOKENS] = compared(call_ours, call_torch)
    return found


def measured_experts(model: nn.Module, replaced: nn.Module) -> dict[int, Any]:
    """Return the figures of a layer of experts alone, for tokens that choose experts at random."""
    layers: list[Any] = [
        next(layer for layer in each.modules() if hasattr(layer, "has_gate")) for each in (model, replaced)
    ]
    theirs, ours = layers
    config = cast(Any, model).config
    found: dict[int, Any] = {}
    for tokens in EXPERT_TOKENS:
        x = torch.randn(tokens, config.hidden_size, device="cuda")
        scores = torch.randn(tokens, theirs.gate_up_proj.shape[0], device="cuda", dtype=torch.float32)
        weight, expert = scores.softmax(1).topk(config.num_experts_per_tok, 1)
        call_ours, call_torch = (partial(each, x, expert, weight.bfloat16()) for each in (ours, theirs))
        error = error_of(call_ours(), call_torch())
        found[tokens] = compared(captured(call_ours), captured(call_torch)) | {"error": error}
    return found


def main() -> None:
    """Measure, and print a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--linear", help="a library of linear layers")
    parser.add_argument("--compiled", action="store_true", help="with reduce-overhead too")
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    linear = [import_module(arguments.linear)] if arguments.linear else []
    torch.set_default_dtype(torch.bfloat16)
    models: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name in arguments.models:
        with torch.device("cuda"):
            model = MODELS[name](arguments.layers)
        replaced, experts = copy.deepcopy(model), experts_of(name)
        done = accelerate_model(replaced, *linear, experts=experts)
        with torch.no_grad():
            of_experts = measured_experts(model, replaced) if experts else {}
            of_model = measured(model, replaced, is_compiled=arguments.compiled)
        models[name], counts[name] = of_model | {"experts": of_experts}, len(done.replaced)
        cast(Any, torch).compiler.reset()
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": import_module("triton").__version__,
        "transformers": import_module("transformers").__version__,
        "linear": arguments.linear,
        "layers": arguments.layers,
        "replaced": counts,
        "models": models,
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
