"""`kvedge verify`: right artifacts agree, also past their windows; every kind of mistake is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from commands import Command, check_last_error, listing
from tiny_models import original_logits, tiny_llama, write_artifact
from transformers import AutoConfig, AutoModelForCausalLM

from kvedge.export import verify
from kvedge.export.original import Original
from kvedge.export.prompts import loudest_tokens, make_prompts
from kvedge.export.settings import CacheSettings, WeightType, make_spec
from kvedge.export.source import LoadedModel, load_model
from kvedge.export.trace import TracedModel, trace
from kvedge.export.twin import exact_cache
from kvedge.plugins import feeds
from kvedge.targets import manifest as artifact
from kvedge.targets.kinds import Kind

PROMPTS = ["random tokens", "one token", "large activations", "many scripts"]


@pytest.fixture
def copy(tiny, tmp_path: Path) -> Path:
    """A copy of the int3 artifact, to change."""
    return shutil.copytree(tiny.int3, tmp_path / "copy")


def rewrite(folder: Path) -> None:
    """Give changed files a manifest that fits."""
    old = artifact.read(folder)
    artifact.write(folder, replace(old, files={name: artifact.describe(folder / name) for name in old.files}))


# ---- What is right.


@pytest.mark.parametrize("name", ["fp", "int3", "whole"])
def test_exports_agree(name: str, kvedge: Command, tiny) -> None:
    folder = getattr(tiny, name)
    before = [(path, path.stat().st_mtime_ns) for path in listing(folder)]
    found = kvedge("verify", folder, tiny.hf, "--json").json
    assert found["agrees"] and found["problems"] == []
    assert [prompt["name"] for prompt in found["prompts"]] == PROMPTS
    assert found["exact_error"] < 1e-4 < found["exact_tolerance"] < 0.1
    assert found["hot_error"] < 0.01 and found["kl"] < 0.01
    assert found["forgets"] == (name != "whole")
    for prompt in found["prompts"]:
        assert (prompt["packed_pages_read"] > 0) == (name != "fp")
        assert prompt["tokens"] == (100 if name != "whole" else 68)
    assert [(path, path.stat().st_mtime_ns) for path in listing(folder)] == before, "nothing is written there"


def test_text(kvedge: Command, tiny) -> None:
    result = kvedge("verify", tiny.int3, tiny.hf)
    assert result.code == 0 and result.out.endswith("\nagrees\n")
    for words in (*PROMPTS, "at most", "0.002", "made to forget"):
        assert words in result.out
    assert "packs nothing" in kvedge("verify", tiny.fp, tiny.hf).out


FAMILIES = {
    "sliding, two ropes": (
        "gemma3_text",
        {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "softcaps": ("gemma2", {"sliding_window": 24, "attn_logit_softcapping": 5.0}),
    "interleaved, partial": ("glm4", {"partial_rotary_factor": 0.5}),
    "no rope in a layer": ("smollm3", {"no_rope_layers": [1, 0]}),
}
CASES = [name if name == "sliding, two ropes" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


def family(model_type: str, changes: dict[str, object]) -> LoadedModel:
    """Two layers with sharp attention."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=16)
    more = dict(num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, pad_token_id=0)
    config = AutoConfig.for_model(model_type, **sizes, **more, **changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "_proj" in name:
                weight *= 4
    return LoadedModel(model, None, model_type, model.config)


@pytest.mark.parametrize("name", CASES)
def test_families_agree_past_their_windows(name: str, tmp_path: Path) -> None:
    """The original that is made to forget, and a graph that forgets, are two ways of saying the same."""
    loaded = family(*FAMILIES[name])
    traced = trace(loaded)
    for number, window in enumerate((40, 24)):
        settings = CacheSettings(kind=Kind.INT4, window=window, sinks=4, recent=8, page=8)
        folder = write_artifact(loaded, traced, settings, tmp_path / str(number))
        cache = make_spec(traced, settings, 256)
        report = verify.verify_artifact(folder, loaded, cache, WeightType.FP32)
        assert report.problems == () and report.exact_error < 2e-4
        assert report.forgets and report.packed_pages_read > 0


def test_native_windows_are_left_to_the_original(tmp_path: Path) -> None:
    loaded = family("mistral", {"sliding_window": 24})
    traced = trace(loaded)
    settings = CacheSettings(kind=Kind.INT4, window=None, sinks=4, recent=8, page=8)
    cache = make_spec(traced, settings, 256)
    assert not Original(loaded, cache).forgets(256)
    folder = write_artifact(loaded, traced, settings, tmp_path / "artifact")
    report = verify.verify_artifact(folder, loaded, cache, WeightType.FP32)
    assert report.problems == () and not report.forgets and report.prompts[0].tokens == 48


@pytest.mark.parametrize(("window", "sinks"), [(13, 4), (13, 0), (None, 4)])
def test_the_forgetting_original_is_the_oracle_of_the_tests(window: int | None, sinks: int) -> None:
    loaded = tiny_llama()
    settings = CacheSettings(kind=Kind.INT3, window=window, sinks=sinks, recent=16, page=8)
    cache = make_spec(traced_llama(), settings, 128)
    ids = np.random.default_rng(1).integers(0, 512, 100)
    got = Original(loaded, cache).logits(ids.tolist(), range(100))
    want = original_logits(loaded, ids, sinks, window)
    assert np.abs(got - want).max() / want.std() < 1e-4


def traced_llama() -> TracedModel:
    """Facts alone, without a graph."""
    from kvedge.export.attention import probe_attention
    from kvedge.export.rotary import find_sources, match_ropes
    from kvedge.export.trace import LayerFacts

    loaded = tiny_llama()
    ropes = match_ropes(find_sources(loaded.model, None), probe_attention(loaded.model))
    facts = [LayerFacts(layer=n, heads=4, kv_heads=2, head_dim=16, scale=0.25, softcap=0.0, window=0) for n in range(2)]
    return TracedModel(
        ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), ropes.specs, ropes.layer_rope, tuple(facts), {}
    )


# ---- Prompts.


def test_prompts_are_the_same_every_time(tiny) -> None:
    loaded = load_model(str(tiny.hf), trust_remote_code=False)
    prompts = make_prompts(loaded, 50)
    assert prompts == make_prompts(loaded, 50)
    assert [prompt.name for prompt in prompts] == PROMPTS
    assert all(len(prompt.ids) == 50 and max(prompt.ids) < 512 for prompt in prompts)
    assert len(set(prompts[1].ids)) == 1
    assert "پنجره" in loaded.tokenizer.decode(make_prompts(loaded, 400)[3].ids)
    bare = make_prompts(replace(loaded, tokenizer=None), 50)
    assert [prompt.name for prompt in bare] == PROMPTS[:3]


def test_loud_tokens_are_loud() -> None:
    loaded = tiny_llama()
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[77] *= 300
    assert loudest_tokens(loaded)[0] == 77
    assert 77 in make_prompts(loaded, 100)[2].ids


# ---- What is wrong.


def change_weight(folder: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change one weight of the second layer in its file."""
    model = ir.load(folder / artifact.GRAPH)
    name = next(name for name in model.graph.initializers if "layers.1.self_attn.q_proj" in name)
    tensor = model.graph.initializers[name].const_value
    data = np.memmap(folder / artifact.WEIGHTS, np.uint8, "r+")
    change(data[tensor.offset : tensor.offset + tensor.length].view(np.float32))
    data.flush()
    rewrite(folder)


def test_another_weight_disagrees(kvedge: Command, tiny, copy: Path) -> None:
    change_weight(copy, lambda weight: np.negative(weight[:64], out=weight[:64]))
    result = kvedge("verify", copy, tiny.hf)
    assert result.code == 1
    assert "DISAGREES: random tokens: unquantized, max |difference| / std: expected at most 0.002" in result.out
    found = kvedge("verify", copy, tiny.hf, "--json")
    assert found.code == 1 and '"agrees": false' in found.out


def test_no_number_disagrees(kvedge: Command, tiny, copy: Path) -> None:
    change_weight(copy, lambda weight: weight.fill(np.nan))
    assert kvedge("verify", copy, tiny.hf).code == 1


def test_another_checkpoint_disagrees(kvedge: Command, tiny, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.hf)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight *= 1.1
    model.save_pretrained(tmp_path / "tuned")
    assert kvedge("verify", tiny.int3, tmp_path / "tuned").code == 1


@pytest.mark.parametrize("name", ["window", "sinks", "scale", "k_bits"])
def test_a_graph_that_its_manifest_does_not_describe(name: str, kvedge: Command, tiny, copy: Path) -> None:
    model = ir.load(copy / artifact.GRAPH)
    node = next(node for node in model.graph if node.op_type == "PagedAttention")
    value = node.attributes[name].value
    node.attributes[name] = ir.AttrFloat32(name, value * 1.01) if name == "scale" else ir.AttrInt64(name, value + 1)
    ir.save(model, copy / artifact.GRAPH)
    rewrite(copy)
    got = "0.25249" if name == "scale" else value + 1
    check_last_error(kvedge("verify", copy, tiny.hf), f"layer 0 of the graph: {name}; expected {value}; got {got}")


def test_a_wrong_turn_towards_the_sinks_shows(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only past the window: before it, nothing is turned."""
    loaded, cache = load_model(str(tiny.hf), trust_remote_code=False), artifact.read(tiny.int3).cache
    shifts = feeds.sink_shifts
    monkeypatch.setattr(feeds, "sink_shifts", lambda *arguments: shifts(*arguments) + 1)
    report = verify.verify_artifact(tiny.int3, loaded, cache, WeightType.FP32)
    assert report.exact_error > 20 * report.exact_tolerance and report.structure_problems


def test_a_collapse_is_no_structural_problem(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, cache = load_model(str(tiny.hf), trust_remote_code=False), artifact.read(tiny.int3).cache
    monkeypatch.setattr(verify, "COLLAPSE_KL", 1e-9)
    report = verify.verify_artifact(tiny.int3, loaded, cache, WeightType.FP32)
    assert report.structure_problems == () and len(report.problems) == 4
    assert report.problems[0].startswith("random tokens: packed, KL divergence in nats: expected at most 1e-09, got ")


def test_rounding_of_exact_pages_is_measured(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision is coarser than the twin, and a tolerance below it is exceeded."""
    loaded, cache = load_model(str(tiny.hf), trust_remote_code=False), artifact.read(tiny.int3).cache
    monkeypatch.setitem(verify.HOT_TOLERANCE, WeightType.FP32, -verify.EXACT_TOLERANCE[WeightType.FP32] + 1e-6)
    report = verify.verify_artifact(tiny.int3, loaded, cache, WeightType.FP32)
    assert "before packing" in report.structure_problems[0]
    exact = [prompt.exact_error for prompt in report.prompts]
    assert all(prompt.hot_error > error for prompt, error in zip(report.prompts, exact, strict=True))


def test_twins_keep_windows_and_sinks(tiny) -> None:
    cache = artifact.read(tiny.int3).cache
    twin = exact_cache(cache)
    assert [replace(layer.rules, exact=False) for layer in twin.layers] == [layer.rules for layer in cache.layers]
    assert {layer.kind for layer in twin.layers} == {Kind.FP} and twin.sink_turns == cache.sink_turns


def test_mistakes(kvedge: Command, tiny, tmp_path: Path, copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check_last_error(kvedge("verify", tiny.int3, tmp_path / "none"), "no model at")
    check_last_error(kvedge("verify", tmp_path, tiny.hf), "manifest.json")
    family("llama", {}).model.save_pretrained(tmp_path / "other")
    capfd.readouterr()  # its progress bar
    check_last_error(kvedge("verify", tiny.int3, tmp_path / "other"), "was not made from other", "vocabulary of 256")
    (copy / "tokenizer.json").write_text("{}")
    check_last_error(kvedge("verify", copy, tiny.hf), "damaged artifact")
