"""Weights of four and eight bits as checkpoints have them, in one order for kernels that decode weights."""

from gemmgen.integrations.weights.awq import from_awq
from gemmgen.integrations.weights.checkpoint_experts import from_experts
from gemmgen.integrations.weights.checkpoint_layer import from_layer
from gemmgen.integrations.weights.compressed_tensors import from_compressed_tensors
from gemmgen.integrations.weights.gptq import from_gptq
from gemmgen.integrations.weights.mxfp4 import from_mxfp4
from gemmgen.integrations.weights.nvfp4 import from_nvfp4
from gemmgen.integrations.weights.quantized import QuantizedWeight
from gemmgen.integrations.weights.unpacked import from_unpacked

__all__ = [
    "QuantizedWeight",
    "from_awq",
    "from_compressed_tensors",
    "from_experts",
    "from_gptq",
    "from_layer",
    "from_mxfp4",
    "from_nvfp4",
    "from_unpacked",
]
