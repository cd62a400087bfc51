"""The linear layers of a model, by its config.json of Hugging Face: the problem sizes to tune for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape

ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Rows of A to tune for: tokens of decoding, of batches, and of chunks of prompts."""


@dataclass(frozen=True)
class Layer:
    """A linear layer: D [M, n] = A [M, k] @ weight [n, k].T."""

    name: str
    n: int
    k: int


def shapes_of_model(path: Path, gpus: int = 1) -> tuple[Shape, ...]:
    """Return the problem sizes [M, N, K] of the linear layers of a model, for all `ROWS`.

    Args:
        path: The model's config.json.
        gpus: The number of GPUs that share layers by tensor parallelism: QKV and the first layer of an MLP
            along N, the others along K.

    Raises GemmgenError (``bad-model``): there is no such file, it is no JSON object, it lacks a size, or a
    size cannot be divided.
    """
    layers = layers_of(read_config(path), gpus, path.as_posix())
    sizes = dict.fromkeys((layer.n, layer.k) for layer in layers)
    return tuple((m, n, k) for n, k in sizes for m in ROWS)


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the settings of a model's text part; raises GemmgenError (``bad-model``)."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refusal(path.as_posix(), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refusal(path.as_posix(), "is no JSON") from error
    if not isinstance(found, dict):
        raise _refusal(path.as_posix(), "is no JSON object")
    settings = cast("dict[str, Any]", found)
    text = settings.get("text_config")  # of a model of several kinds of input
    return cast("dict[str, Any]", text) if isinstance(text, dict) else settings


def layers_of(config: Mapping[str, Any], gpus: int = 1, path: str = "config.json") -> tuple[Layer, ...]:
    """Return the linear layers of one block of a model, of those that a GPU has.

    QKV is one layer, as is the first half of an MLP, as engines for inference have them. Experts and the last
    layer are none of these: experts are tuned together, and the last layer is one call among hundreds.
    """
    return tuple(_layers(_Config(config, gpus, path)))


@dataclass(frozen=True)
class _Config:
    """The sizes of a model, divided over GPUs."""

    values: Mapping[str, Any]
    gpus: int
    path: str

    def size(self, name: str, default: int | None = None) -> int:
        """Return a size; raises GemmgenError (``bad-model``) if there is none."""
        found = self.values.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            what = "is missing" if found is None else f"is {found!r}, and no whole number above 0"
            raise _refusal(self.path, f"{name} {what}: the layers of such a model are not known")
        return found

    def share(self, name: str, size: int) -> int:
        """Return a size on one GPU; raises GemmgenError (``bad-model``) if it cannot be divided."""
        if size % self.gpus:
            raise _refusal(self.path, f"{name} is {size}, which {self.gpus} GPUs cannot share evenly")
        return size // self.gpus


GATED: Final = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "glm4", "glm4_moe", "gpt_oss"),
        *("granite", "kimi_k2", "llama", "ministral", "mistral", "mixtral", "olmo2", "phi3", "qwen2"),
        *("qwen2_moe", "qwen3", "qwen3_moe"),
    )
)
"""The ``model_type`` of models whose MLPs have two first halves, which are one layer side by side."""

EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
"""Settings of models with experts in place of an MLP, in some or all blocks."""


def _layers(config: _Config) -> Iterator[Layer]:
    if (kind := config.values.get("model_type")) not in GATED:
        found = "missing" if kind is None else f"{kind!r}"
        message = f"model_type is {found}, whose layers are not known: name sizes with --shapes"
        raise _refusal(config.path, message)
    hidden, all_heads = config.size("hidden_size"), config.size("num_attention_heads")
    heads = config.share("num_attention_heads", all_heads)
    if "kv_lora_rank" in config.values:
        yield from _latent_attention(config, hidden, heads)
    else:
        if config.values.get("head_dim") is None and hidden % all_heads:
            message = f"hidden_size is {hidden}, which {all_heads} heads cannot share evenly"
            raise _refusal(config.path, f"{message}, and head_dim is missing")
        head = config.size("head_dim", hidden // all_heads)
        kv_heads = config.size("num_key_value_heads", all_heads)
        # Fewer heads than GPUs are on several of them.
        of_gpu = config.share("num_key_value_heads", kv_heads) if kv_heads >= config.gpus else 1
        yield Layer("qkv", (heads + 2 * of_gpu) * head, hidden)
        yield Layer("attention output", hidden, heads * head)
    if config.values.get("first_k_dense_replace") or not any(map(config.values.get, EXPERTS)):
        yield from _mlp(config, "mlp", hidden, "intermediate_size")
    if config.values.get("n_shared_experts"):
        width = config.size("moe_intermediate_size") * config.size("n_shared_experts")
        yield from _halves("shared experts", hidden, config.share("moe_intermediate_size", width))
    elif config.values.get("shared_expert_intermediate_size"):
        yield from _mlp(config, "shared expert", hidden, "shared_expert_intermediate_size")


def _mlp(config: _Config, name: str, hidden: int, key: str) -> Iterator[Layer]:
    """Yield both layers of an MLP; the first has two products side by side."""
    yield from _halves(name, hidden, config.share(key, config.size(key)))


def _halves(name: str, hidden: int, width: int) -> Iterator[Layer]:
    yield Layer(f"{name}, in", 2 * width, hidden)
    yield Layer(f"{name}, out", hidden, width)


def _latent_attention(config: _Config, hidden: int, heads: int) -> Iterator[Layer]:
    """Yield the layers of latent attention, as DeepSeek's models have it; those down are not divided."""
    latent, rotary = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    if config.values.get("q_lora_rank"):
        queries = config.size("q_lora_rank")
        yield Layer("query and latent, down", queries + latent + rotary, hidden)
        yield Layer("query, up", heads * (plain + rotary), queries)
    else:
        yield Layer("query", heads * (plain + rotary), hidden)
        yield Layer("latent, down", latent + rotary, hidden)
    yield Layer("latent, up", heads * (plain + value), latent)
    yield Layer("attention output", hidden, heads * value)


def _refusal(path: str, message: str) -> GemmgenError:
    return GemmgenError([Diagnostic(path, "bad-model", message)])
