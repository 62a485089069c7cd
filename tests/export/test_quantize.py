"""Blocks found for weights: formats with such blocks are kept, others lose little; graphs say the same with both."""

from __future__ import annotations

from collections import Counter

import gguf
import numpy as np
import pytest
import torch
from tiny_models import tiny_llama
from transformers.activations import ACT2FN

from kvedge.export.fuse import fuse_for_ort
from kvedge.export.put_floats import put_floats
from kvedge.export.quantize import find_blocks, original_weights, quantize_model
from kvedge.export.trace import trace
from kvedge.targets.block_weights import BLOCK
from kvedge.targets.errors import KvedgeError
from kvedge.targets.settings import WeightType

NORMAL = torch.randn(96, 256, generator=torch.Generator().manual_seed(0)) * 0.05
FORMATS = {"Q4_0": (4, 8), "Q4_1": (4, 8), "Q8_0": (8,)}


def through_gguf(name: str) -> torch.Tensor:
    """Weights as a reader of a GGUF file gets them."""
    kind = gguf.GGMLQuantizationType[name]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(NORMAL.numpy(), kind), kind))


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name, some in FORMATS.items() for bits in some])
def test_formats_with_such_blocks_are_kept(name: str, bits: int) -> None:
    weights = through_gguf(name)
    blocks, kept = find_blocks(weights, bits)
    assert kept == weights.numel() // BLOCK
    assert np.abs(blocks.weights() - weights.numpy()).max() <= 3e-7 * weights.abs().max()


@pytest.mark.parametrize(("bits", "most"), [(4, 0.0054), (8, 2.0e-5)])
def test_others_lose_little(bits: int, most: float) -> None:
    """Relative squared error; smallest and largest weight as the range would give 0.0062 and 2.1e-5."""
    blocks, kept = find_blocks(NORMAL, bits)
    assert kept == 0 and blocks.codes.max() == (1 << bits) - 1
    assert ((blocks.weights() - NORMAL.numpy()) ** 2).sum() <= most * (NORMAL.numpy() ** 2).sum()


@pytest.mark.parametrize("bits", [4, 8])
def test_constant_and_empty_blocks(bits: int) -> None:
    weights = torch.zeros(2, 64)
    weights[1] = 0.25
    assert np.array_equal(find_blocks(weights, bits)[0].weights(), weights.numpy())


def test_what_only_8_bits_keep_gets_8_bits() -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(256, 96, bias=False) for name in FORMATS})
    for name in FORMATS:
        model[name].weight.data = through_gguf(name)
    quantized = quantize_model(model, WeightType.INT4)
    assert {name: blocks.bits for name, blocks in quantized.blocks.items()} == {
        "Q4_0.weight": 4,
        "Q4_1.weight": 4,
        "Q8_0.weight": 8,
    }
    assert quantized.weights.kept == 1.0 and quantized.weights.originals == {}


def test_originals_come_back() -> None:
    model = torch.nn.Linear(64, 32)
    weights, bias = model.weight.data.clone(), model.bias.data.clone()
    quantized = quantize_model(model, WeightType.INT4)
    rounded = model.weight.data.clone()
    assert not torch.equal(rounded, weights) and torch.equal(model.bias, bias)
    with original_weights(model, quantized.weights):
        assert torch.equal(model.weight, weights)
    assert torch.equal(model.weight, rounded)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_originals_take_no_more_than_in_their_checkpoint(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(64, 32)
    model.weight.data = weights = model.weight.data.to(dtype).float()
    quantized = quantize_model(model, WeightType.INT4)
    assert quantized.weights.originals["weight"].dtype == dtype
    with original_weights(model, quantized.weights):
        assert torch.equal(model.weight, weights)


def test_what_stays_as_it_is() -> None:
    assert quantize_model(torch.nn.Linear(64, 32), WeightType.FP16) is None
    assert quantize_model(torch.nn.Linear(40, 32), WeightType.INT4).blocks == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_numbers_are_refused(value: float) -> None:
    model = torch.nn.Linear(64, 32)
    model.weight.data[3, 5] = value
    with pytest.raises(KvedgeError, match="weights weight; expected finite numbers"):
        quantize_model(model, WeightType.INT8)


NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "gelu"])
def test_graphs_take_blocks_and_give_floats_back(activation: str) -> None:
    """Every product and the lookup, with joined gates where the activation is known; the floats are the model's."""
    loaded = tiny_llama()
    for layer in loaded.model.model.layers:
        layer.mlp.act_fn = ACT2FN[activation]
    quantized = quantize_model(loaded.model, WeightType.INT4)
    traced = trace(loaded)
    fuse_for_ort(traced, quantized.blocks)
    model = traced.model
    gated = 2 if activation != "gelu" else 0
    ops = Counter(node.op_type for node in model.graph)
    assert (ops["BlockLinear"], ops["BlockGated"]) == (3 * 2 + 1 if gated else 5 * 2 + 1, gated)
    assert ops["BlockEmbedding"] == 1 and not {"FusedMatMul", "MatMul"} & set(ops)
    assert sum(ops[norm] for norm in NORMS) == (0 if gated else 2), "one product alone takes a norm over"
    known = {name: parameter.detach().numpy() for name, parameter in loaded.model.named_parameters()}
    fed = put_floats(model, known)
    assert all(fed[name] is known[name] for name in fed)
    ops = Counter(node.op_type for node in model.graph)
    assert sum(ops[norm] for norm in NORMS) == 2 * 2 + 1
    assert ops["FusedMatMul"] == 7 * 2 + 1 and not {"BlockLinear", "BlockGated", "BlockEmbedding"} & set(ops)
