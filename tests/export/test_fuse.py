"""What is left of a graph after the fusions, family by family; that it says the same is shown end to end."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from tiny_families import FAMILIES, tiny_model
from tiny_models import tiny_llama

from kvedge.export.fuse import fuse_for_ort
from kvedge.export.graph_check import attention_nodes
from kvedge.export.quantize import quantize_model
from kvedge.export.trace import TracedModel, trace
from kvedge.targets import names
from kvedge.targets.settings import WeightType


def fused(name: str) -> TracedModel:
    traced = trace(tiny_model(name, **FAMILIES[name].changes))
    fuse_for_ort(traced)
    return traced


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_takes_over_rotary_embeddings_and_layouts(name: str) -> None:
    traced = fused(name)
    left = Counter(node.op_type for node in traced.model.graph)
    assert not {"Transpose", "Neg", "Slice", "Unsqueeze"} & set(left), left
    for node, rope in zip(attention_nodes(traced.model), traced.layer_rope, strict=True):
        angles = [value.name for value in node.inputs[3:] if value is not None]
        assert angles == ([] if rope is None else [names.cos(rope), names.sin(rope)])


def nodes_of_a_layer(model: ir.Model) -> float:
    """Outside the layers stand the embedding with its norm, two choices of tokens and the head."""
    return (len(model.graph) - 5) / 2


@pytest.mark.parametrize(("weights", "most"), [(WeightType.FP32, 12), (WeightType.INT4, 5)])
def test_few_nodes_a_layer(weights: WeightType, most: int) -> None:
    loaded = tiny_llama()
    quantized = quantize_model(loaded.model, weights)
    traced = trace(loaded)
    fuse_for_ort(traced, quantized.blocks if quantized else {})
    assert nodes_of_a_layer(traced.model) <= most, Counter(node.op_type for node in traced.model.graph)


def test_fusing_again_changes_nothing() -> None:
    traced = trace(tiny_llama())
    fuse_for_ort(traced)
    before = [(node.op_type, [value and value.name for value in node.inputs]) for node in traced.model.graph]
    fuse_for_ort(traced)
    assert [(node.op_type, [value and value.name for value in node.inputs]) for node in traced.model.graph] == before


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_mlp_sees_only_the_tokens_that_count(name: str) -> None:
    """Everything behind the last attention reads a choice of tokens."""
    model = fused(name).model
    chosen = [node for node in model.graph if names.LOGITS_INDEX in [value and value.name for value in node.inputs]]
    assert chosen and all(node.op_type == "Gather" for node in chosen)
    last = attention_nodes(model)[-1]
    readers = {node.inputs[0].name for node in chosen if node.inputs[0] is not None}
    assert last.outputs[0].name in readers, f"{readers}"
