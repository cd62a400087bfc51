"""The layers of models by their config.json, as `gemmgen tune --model` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from commands import Gemmgen
from modules import ROOT

from gemmgen.errors import GemmgenError
from gemmgen.tune.model_layers import ROWS, layers_of, read_config, shapes_of_model

pytestmark = pytest.mark.quick
pytest_plugins = ["commands"]

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
}


def sizes(config: dict[str, Any], gpus: int = 1) -> list[tuple[int, int]]:
    return [(layer.n, layer.k) for layer in layers_of(config, gpus)]


def test_a_llama_has_qkv_output_gate_and_up_and_down() -> None:
    assert sizes(LLAMA_8B) == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]


def test_heads_may_be_wider_than_their_share_of_a_row() -> None:
    assert sizes(QWEN3_4B) == [(6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)]


def test_latent_attention_has_layers_down_and_up() -> None:
    assert sizes(DEEPSEEK_V3) == [
        *((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384)),
        *((36864, 7168), (7168, 18432), (4096, 7168), (7168, 2048)),
    ]
    without = {key: value for key, value in DEEPSEEK_V3.items() if key != "q_lora_rank"}
    assert sizes(without)[:2] == [(24576, 7168), (576, 7168)]


def test_gpus_share_layers() -> None:
    assert sizes(LLAMA_8B, 4) == [(1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)]
    # There are eight heads of K and of V. With 16 GPUs, each GPU has one of both.
    assert sizes(LLAMA_8B, 16)[0] == ((2 + 2) * 128, 4096)
    assert sizes(DEEPSEEK_V3, 8)[:4] == [(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)]


def test_a_shared_expert_is_a_linear_layer_and_experts_are_none() -> None:
    qwen_moe = {**LLAMA_8B, "model_type": "qwen2_moe", "num_experts": 60}
    assert sizes(qwen_moe) == sizes({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8})
    assert sizes(qwen_moe) == sizes(LLAMA_8B)[:2]
    shared = {**qwen_moe, "shared_expert_intermediate_size": 5632}
    assert sizes(shared)[2:] == [(11264, 4096), (4096, 5632)]


def test_each_size_is_tuned_for_all_rows_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": {**LLAMA_8B, "intermediate_size": 4096}}))
    shapes = shapes_of_model(path)
    assert len(shapes) == len({*shapes}) == 3 * len(ROWS)  # output and down have one size
    assert {m for m, _, _ in shapes} == {*ROWS}


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        ({}, 1, "model_type is missing, whose layers are not known: name sizes with --shapes"),
        ({**LLAMA_8B, "model_type": "gpt_neox"}, 1, "model_type is 'gpt_neox', whose layers are not known"),
        ({"model_type": "llama"}, 1, "hidden_size is missing: the layers of such a model are not known"),
        ({**LLAMA_8B, "hidden_size": 4097}, 1, "hidden_size is 4097, which 32 heads cannot share evenly"),
        ({**LLAMA_8B, "num_key_value_heads": 6}, 4, "num_key_value_heads is 6, which 4 GPUs cannot share"),
        ({**LLAMA_8B, "hidden_size": "4k"}, 1, "hidden_size is '4k', and no whole number"),
        (
            {**LLAMA_8B, "intermediate_size": True},
            1,
            "intermediate_size is True, and no whole number above 0",
        ),
        (LLAMA_8B, 3, "num_attention_heads is 32, which 3 GPUs cannot share evenly"),
    ],
)
def test_a_model_of_unknown_layers_is_refused(config: dict[str, Any], gpus: int, message: str) -> None:
    with pytest.raises(GemmgenError, match="bad-model") as refused:
        layers_of(config, gpus, "x/config.json")
    assert str(refused.value).startswith(f"x/config.json: error[bad-model]: {message}")


@pytest.mark.parametrize(
    ("text", "message"), [("", "is no JSON"), ("[]", "is no JSON object"), (None, "cannot be read: No such")]
)
def test_a_file_that_is_no_config_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GemmgenError, match=message):
        read_config(path)


def test_gpus_share_the_layers_of_a_model_alone(gemmgen_: Gemmgen, good: Path) -> None:
    refused = gemmgen_("tune", str(good), "--shape", "8x8x8", "--tensor-parallel", "2")
    assert refused.code == 2
    assert "divides the layers of a --model" in refused.stderr


def test_the_page_has_what_tuning_a_model_reached() -> None:
    sizes = json.loads((ROOT / "benchmarks" / "reading" / "model_tuned.json").read_text())["sizes"]
    tuned = [each["cublas_us"] / each["us"] for each in sizes.values()]
    planned = [each["cublas_us"] / each["planner_us"] for each in sizes.values()]
    quoted = (
        f"`--minutes 7` reached {len(sizes)} of {4 * len(ROWS)} sizes on an H200: their kernels have "
        f"{geometric_mean(tuned):.2f} of cuBLAS's speed in geometric mean, at least {min(tuned):.2f}. The "
        f"planner's first choices have {geometric_mean(planned):.2f}"
    )
    assert quoted in " ".join((ROOT / "docs" / "tuning.md").read_text().split())
