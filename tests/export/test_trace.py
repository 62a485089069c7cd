"""A traced graph, with plain attention in place of the kvedge nodes, equals the eager model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from kvedge.export.graph_check import attention_nodes
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.trace import LayerFacts, TracedModel, trace
from kvedge.targets.errors import KvedgeError
from kvedge.targets.spec import RopeSpec

VOCAB = 512
LAYERS = 2
TOLERANCE = 1e-4  # largest difference, relative to the logits' standard deviation

_SLIDING_FIRST = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 7},
    "gemma3_text": {**_SLIDING_FIRST, "head_dim": 32, "query_pre_attn_scalar": 24},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "smollm3": {"no_rope_layers": [1, 0]},
}


def tiny_config(model_type: str, **changes: object) -> PretrainedConfig:
    """A config of a few hundred thousand weights."""
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return AutoConfig.for_model(model_type, **{**sizes, **changes})


def tiny_model(model_type: str, **changes: object) -> LoadedModel:
    """A random model whose attention matters: with default weights, position and mask bugs hide in the noise."""
    config = tiny_config(model_type, **changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    gains = {"q_proj": 6.0, "k_proj": 6.0, "v_proj": 4.0, "o_proj": 4.0, "qkv_proj": 5.0}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= gains.get(name.split(".")[-2], 1.0)
            if name.endswith("bias") or "norm" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return LoadedModel(model, None, model_type, model.config)


def plain_attention(tape: ir.tape.Tape, node: ir.Node, facts: LayerFacts) -> ir.Value:
    """Causal attention over the new tokens alone, in standard ONNX operators."""
    q, k, v = node.inputs

    def op(name: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        return tape.op(name, inputs, attributes)

    def const(value: object, dtype: type = np.int64) -> ir.Value:
        return op("Constant", value=ir.tensor(np.array(value, dtype)))

    owner = const(np.arange(facts.heads) // (facts.heads // facts.kv_heads))
    keys, values = op("Gather", k, owner, axis=1), op("Gather", v, owner, axis=1)
    scores = op("MatMul", q, op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = op("Mul", scores, const(facts.scale, np.float32))
    if facts.softcap:
        cap = const(facts.softcap, np.float32)
        scores = op("Mul", op("Tanh", op("Div", scores, cap)), cap)
    positions = op("Range", const(0), op("Squeeze", op("Shape", q, start=2, end=3)), const(1))
    age = op("Sub", op("Unsqueeze", positions, const([1])), op("Unsqueeze", positions, const([0])))
    seen = op("Not", op("Less", age, const(0)))
    if facts.window:
        seen = op("And", seen, op("Less", age, const(facts.window)))
    weights = op("Softmax", op("Where", seen, scores, const(-1e30, np.float32)), axis=-1)
    return op("Transpose", op("MatMul", weights, values), perm=[0, 2, 1, 3])


def runnable(traced: TracedModel, folder: Path) -> ort.InferenceSession:
    """Replace the kvedge nodes of `traced` in place and open the graph in ONNX Runtime."""
    for node, facts in zip(attention_nodes(traced.model), traced.layers, strict=True):
        tape = ir.tape.Tape()
        output = plain_attention(tape, node, facts)
        ir.convenience.replace_nodes_and_values(traced.model.graph, node, [node], tape.nodes, node.outputs, [output])
    path = folder / "plain.onnx"
    ir.save(traced.model, path, external_data="plain.data")
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def angles(ropes: tuple[RopeSpec, ...], batch: int, new: int) -> dict[str, np.ndarray]:
    """The cos and sin inputs of positions 0 to new - 1."""
    feeds = {}
    for number, rope in enumerate(ropes):
        angle = np.arange(new)[:, None] * np.array(rope.inv_freq)
        for name, values in (("cos", np.cos(angle)), ("sin", np.sin(angle))):
            scaled = (values * rope.attention_scaling).astype(np.float32)
            feeds[f"{name}.{number}"] = np.broadcast_to(scaled, (batch, *scaled.shape)).copy()
    return feeds


def largest_error(loaded: LoadedModel, traced: TracedModel, session: ort.InferenceSession, batch: int, new: int) -> float:
    """Largest difference of logits over their standard deviation, for random ids and some of the rows."""
    rng = np.random.default_rng(batch * 1000 + new)
    ids = rng.integers(0, loaded.config.get_text_config().vocab_size, (batch, new))
    rows = np.unique(np.r_[rng.integers(0, new, 3), new - 1])
    feeds = {"input_ids": ids, "logits_index": rows, **angles(traced.ropes, batch, new)}
    (logits,) = session.run(["logits"], feeds)
    with torch.no_grad():
        wanted = loaded.model(input_ids=torch.from_numpy(ids), use_cache=False).logits.numpy()
    assert logits.shape == (batch, len(rows), wanted.shape[-1])
    return float(np.abs(logits - wanted[:, rows]).max() / wanted.std())


@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_the_eager_model(family: str, tmp_path: Path) -> None:
    loaded = tiny_model(family, **FAMILIES[family])
    traced = trace(loaded)
    check_contract(traced, loaded)
    session = runnable(traced, tmp_path)
    for batch, new in ((2, 40), (1, 1), (3, 17)):
        assert largest_error(loaded, traced, session, batch, new) <= TOLERANCE


def check_contract(traced: TracedModel, loaded: LoadedModel) -> None:
    """Inputs, dynamic axes, one node a layer, weights under their names and stored once."""
    graph = traced.model.graph
    shapes = {value.name: str(value.shape) for value in graph.inputs}
    pairs = {r: rope.pairs for r, rope in enumerate(traced.ropes)}
    wanted = {"input_ids": "[batch,new]", "logits_index": "[rows]"}
    wanted |= {f"{name}.{r}": f"[batch,new,{p}]" for r, p in pairs.items() for name in ("cos", "sin")}
    assert shapes == wanted
    assert [str(value.shape) for value in graph.outputs] == [f"[batch,rows,{VOCAB}]"]
    assert [facts.layer for facts in traced.layers] == list(range(LAYERS))
    assert Counter(node.op_type for node in graph)["PagedAttention"] == LAYERS
    big = {name for name, value in graph.initializers.items() if value.const_value.size > 1024}
    assert big <= set(dict(loaded.model.named_parameters()))


def test_native_windows_and_ropes_are_found() -> None:
    traced = trace(tiny_model("gemma3_text", **FAMILIES["gemma3_text"]))
    assert [facts.window for facts in traced.layers] == [7, 0]
    assert [facts.scale for facts in traced.layers] == [pytest.approx(24**-0.5)] * 2
    local, full = (traced.ropes[rope] for rope in traced.layer_rope)
    assert local.inv_freq[1] > full.inv_freq[1]
