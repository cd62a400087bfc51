"""The speed of transformers' models with kernels of libraries in place of torch's, beside the same models.

On a Hopper GPU, with transformers 5, and with the library of linear layers and the modules of `EXPERTS` on
the path: ``python -m benchmarks.harness.models [--linear LIBRARY] [--compiled] MODEL…``. It prints JSON. The
models have random weights and few layers, with the sizes of Llama 8B, of Qwen3-MoE 30B-A3B, of gpt-oss 20B,
and of the dense layers of DeepSeek-V3 in fp8. A layer of experts is timed apart too, in CUDA graphs.

In fp8, transformers computes linear layers by DeepGEMM from Hugging Face's hub; an installed ``deep_gemm``
stands for it here. `--right` also gives the errors of both beside the model in fp32, and counts how often
they have the same most likely next token: each step of transformers' own greedy sequences is computed by all.

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
from gemmgen.integrations.quantize import BLOCK, E4M3, dequantized_weight
from gemmgen.integrations.transformers import accelerate_model

WARM_UP, PAIRS, CALLS = 3, 15, 10
TOKENS, COMPILED_TOKENS, VOCABULARY = (1, 4, 16, 64, 512), 16, 32000
MANY_TOKENS = {"llama": (2048, 8192), "deepseek_v3": (4096,)}
"""Further tokens, for models without experts."""
SEQUENCES, STEPS = 4, 32
"""Greedy sequences that `--right` compares, and the tokens of each."""
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


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "first_k_dense_replace": 61,
        },
    ),
}
"""The class in transformers, and the sizes of its configuration."""
FP8 = frozenset({"deepseek_v3"})
"""The models whose linear layers are e4m3 with scales of blocks."""


def model_of(name: str, layers: int) -> nn.Module:
    """Return a model in bf16 on the GPU, with random weights."""
    transformers: Any = import_module("transformers")
    stem, sizes = MODELS[name]
    config = getattr(transformers, f"{stem}Config")(**sizes, num_hidden_layers=layers, vocab_size=VOCABULARY)
    if name in EXPERTS:
        config._experts_implementation = "grouped_mm"
    with torch.device("cuda"):
        model = getattr(transformers, f"{stem}ForCausalLM")(config).eval()
    if name == "gpt_oss":  # transformers gives its experts no numbers
        for parameter_name, parameter in model.named_parameters():
            if "experts" in parameter_name:
                nn.init.normal_(parameter, std=0.02)
    if name in FP8:
        use_installed_deep_gemm()
        make_fp8(model)
    return model


def use_installed_deep_gemm() -> None:
    """Let transformers take DeepGEMM from the environment in place of the hub."""
    theirs: Any = import_module("transformers.integrations.deepgemm")
    theirs.is_kernels_available = lambda: True
    theirs.lazy_load_kernel = {"deep-gemm": import_module("deep_gemm")}.__getitem__


def make_fp8(model: nn.Module) -> None:
    """Replace each linear layer by transformers' fp8 layer, whose weight is the same one rounded to e4m3."""
    fp8_linear: Any = import_module("transformers.integrations.finegrained_fp8").FP8Linear
    for name, layer in list(cast(Any, model).named_modules()):
        if not isinstance(layer, nn.Linear) or name == "lm_head":
            continue
        with torch.device("cuda"):
            made = fp8_linear(layer.in_features, layer.out_features, block_size=(BLOCK, BLOCK))
        scale = layer.weight.abs().max().float() / torch.finfo(E4M3).max
        made.weight.data.copy_(layer.weight.float() / scale)
        made.weight_scale_inv.data.fill_(scale.item())
        cast(Any, model).set_submodule(name, made)


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


def errors_of(model: nn.Module, replaced: nn.Module, *, has_experts: bool) -> dict[str, float]:
    """Return how far each model's logits are from those of its weights in fp32, relative to their norm."""
    exact: Any = copy.deepcopy(model)
    for name, layer in list(exact.named_modules()):
        if hasattr(layer, "weight_scale_inv"):
            made = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
            made.weight = nn.Parameter(
                dequantized_weight(layer.weight, layer.weight_scale_inv, torch.float32), requires_grad=False
            )
            exact.set_submodule(name, made)
    exact = exact.float()
    if has_experts:
        exact.set_experts_implementation("batched_mm")  # its other functions take no fp32
    ids = torch.randint(0, VOCABULARY, (COMPILED_TOKENS, 1), device="cuda")
    wanted = exact(ids, use_cache=False).logits
    return {
        name: error_of(cast(Any, each)(ids, use_cache=False).logits, wanted)
        for name, each in {"ours": replaced, "torch": model}.items()
    }


def same_tokens(model: nn.Module, replaced: nn.Module, *, has_experts: bool) -> dict[str, int]:
    """Return how many tokens of transformers' greedy sequences each model has too.

    ``batched_mm`` is transformers' other function of experts: where it differs, rounding decides.
    """
    any_model: Any = model
    ids = torch.randint(0, VOCABULARY, (SEQUENCES, 1), device="cuda")
    for _ in range(STEPS):
        ids = torch.cat((ids, most_likely(model, ids)[:, -1:]), 1)
    wanted = ids[:, 1:]
    found = {"ours": most_likely(replaced, ids)[:, :-1], "torch": most_likely(model, ids)[:, :-1]}
    if has_experts:
        any_model.set_experts_implementation("batched_mm")
        found["batched_mm"] = most_likely(model, ids)[:, :-1]
        any_model.set_experts_implementation("grouped_mm")
    return {name: int((each == wanted).sum()) for name, each in found.items()} | {"of": wanted.numel()}


def most_likely(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the most likely next token after each token of sequences [sequences, tokens]."""
    return cast(Any, model)(ids, use_cache=False).logits.argmax(-1)


def measured(
    model: nn.Module, replaced: nn.Module, sizes: Sequence[int], *, is_compiled: bool
) -> dict[str, Any]:
    """Return the figures of a model and of a copy whose kernels are ours: also compiled, if asked for."""
    theirs, ours = forward_of(model), forward_of(replaced)
    found: dict[str, dict[int, Any]] = {"eager": {}, "graph": {}, "reduce-overhead": {}}
    for tokens in sizes:
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
    parser.add_argument("--right", action="store_true", help="errors, and the most likely tokens, too")
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    linear = [import_module(arguments.linear)] if arguments.linear else []
    torch.set_default_dtype(torch.bfloat16)
    models: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name in arguments.models:
        model = model_of(name, arguments.layers)
        replaced, experts = copy.deepcopy(model), experts_of(name)
        done = accelerate_model(replaced, *linear, experts=experts)
        with torch.no_grad():
            of_experts = measured_experts(model, replaced) if experts else {}
            right = dict[str, Any]()
            if arguments.right:
                right["errors"] = errors_of(model, replaced, has_experts=experts is not None)
            if arguments.right and name not in FP8:  # DeepGEMM compiles a kernel for each number of tokens
                right["same_tokens"] = same_tokens(model, replaced, has_experts=experts is not None)
            sizes = *TOKENS, *MANY_TOKENS.get(name, ())
            of_model = measured(model, replaced, sizes, is_compiled=arguments.compiled)
        models[name] = of_model | {"experts": of_experts, "right": right}
        counts[name] = len(done.replaced)
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
