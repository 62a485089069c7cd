"""Products and lookups with weights in blocks, as standard operators, against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from block_graphs import INPUTS, OUTPUTS, fed, graph_of, make_blocks, q4_0_like, run, value_of

from kvedge.export.standard.blocks import OPSET
from kvedge.export.standard.symmetric import symmetric
from kvedge.plugins import schema
from kvedge.plugins.reference.linear import Blocks, Norm, gated, normalized, store_blocks
from kvedge.targets.block_weights import BLOCK

ROWS = 10
HALF = 2e-3
"""Float16 weights, inputs and results of a product, over its standard deviation; of two products, twice that."""


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_kept(bits: int) -> None:
    blocks = make_blocks(bits)
    made = symmetric(blocks)
    assert made.planes == bits // 4 and made.numbers.dtype == np.int16
    codes, scale = made.stacked()
    signed = (codes.astype(np.int32) ^ 8) - 8
    assert signed.min() == -8 and signed.max() == 7 and (scale > 0).all()
    products = signed.reshape(made.planes, -1, BLOCK, OUTPUTS) * scale.reshape(made.planes, -1, 1, OUTPUTS).astype(
        float
    )
    got = products.sum(0).transpose(2, 0, 1) + made.offset.astype(np.float64)[..., None]
    want = blocks.weights().astype(np.float64).reshape(got.shape)
    assert (np.abs(got - want) <= 2**-11 * np.abs(made.offset.astype(np.float64))[..., None] + 1e-7).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_offsets_are_small_where_codes_are_few(bits: int) -> None:
    """4-bit lattices in 8-bit codes, say: a large offset would take away what float16 products resolve."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (OUTPUTS, INPUTS // 16))
    scale = np.full((OUTPUTS, INPUTS // BLOCK), 0.25, np.float16)
    made = symmetric(Blocks(bits=bits, codes=codes, scale=scale, minimum=-7.5 * scale))
    assert np.abs(made.offset).max() <= 0.5 * 0.25


def rows(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, ROWS // 2, INPUTS)).astype(np.float32)


def product(op: str, blocks: Blocks, norm: bool = False, **more: object) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model of one product: with a norm and a residual, or of the bare input."""
    feeds = {"x": rows(1), "skip": rows(2)} if norm else {"x": rows(1)}
    gamma = value_of("gamma", np.linspace(0.5, 2, INPUTS, dtype=np.float32))
    bias = value_of("bias", bias_of(blocks)) if op == schema.LINEAR else None
    stored = value_of("w", store_blocks(blocks))
    inputs = [fed("x", feeds["x"]), stored, gamma if norm else None, fed("skip", feeds["skip"]) if norm else None, bias]
    outputs = len(blocks.codes) // (2 if op == schema.GATED else 1)
    attributes = {"bits": blocks.bits, "outputs": outputs, "epsilon": 1e-5 if norm else 0.0, **more}
    node = ir.node(op, inputs, attributes, domain=schema.DOMAIN, num_outputs=2 if norm else 1)
    constants = [value for value in (stored, gamma if norm else None, bias) if value is not None]
    return graph_of(node, feeds, constants), feeds


def met(feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What meets the weights, and the residual sum."""
    x = feeds["x"].reshape(ROWS, INPUTS)
    if "skip" not in feeds:
        return x, x
    gamma = np.linspace(0.5, 2, INPUTS, dtype=np.float32)
    return normalized(x, Norm(gamma=gamma, epsilon=1e-5, skip=feeds["skip"].reshape(ROWS, INPUTS)))


def close(got: np.ndarray, want: np.ndarray, tolerance: float = HALF) -> bool:
    return bool(np.abs(got.reshape(want.shape) - want).max() <= tolerance * want.std())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("norm", [False, True], ids=["bare", "norm"])
def test_linear(bits: int, norm: bool) -> None:
    blocks = make_blocks(bits)
    model, feeds = product(schema.LINEAR, blocks, norm)
    got = run(model, feeds)
    x, total = met(feeds)
    assert close(got[0], x @ blocks.weights().T + bias_of(blocks))
    assert not norm or close(got[1], total, 1e-6)


def bias_of(blocks: Blocks) -> np.ndarray:
    return np.linspace(-1, 1, len(blocks.codes), dtype=np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_need_not_come_in_pairs(bits: int) -> None:
    blocks = make_blocks(bits, outputs=OUTPUTS - 1)
    model, feeds = product(schema.LINEAR, blocks)
    assert close(run(model, feeds)[0], met(feeds)[0] @ blocks.weights().T + bias_of(blocks))
    assert model.graph.initializers["w.codes"].shape == ir.Shape((bits // 4 * INPUTS, OUTPUTS))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("activation", schema.ACTIVATIONS)
def test_gated(bits: int, activation: str) -> None:
    blocks = make_blocks(bits, outputs=2 * OUTPUTS)
    model, feeds = product(schema.GATED, blocks, norm=True, activation=activation)
    gate, up = np.split(met(feeds)[0] @ blocks.weights().T, 2, axis=1)
    assert close(run(model, feeds)[0], gated(gate, up, activation), 2 * HALF)


@pytest.mark.parametrize("bits", [4, 8])
def test_lookups_are_exact(bits: int) -> None:
    blocks, ids = make_blocks(bits), np.array([[0, 47, 5], [5, 1, 30]], np.int64)
    stored = value_of("w", store_blocks(blocks))
    attributes = {"bits": bits, "outputs": OUTPUTS}
    node = ir.node(schema.EMBEDDING, [fed("ids", ids), stored], attributes, domain=schema.DOMAIN)
    model = graph_of(node, {"ids": ids}, [stored])
    assert np.array_equal(run(model, {"ids": ids})[0], blocks.weights()[ids])
    tables = [value.const_value for value in model.graph.initializers.values() if "row" in value.name]
    assert sum(table.nbytes for table in tables) == OUTPUTS * INPUTS * (bits + 1) // 8


@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_multiplies_integers(bits: int, tmp_path: Path) -> None:
    """It fuses the form into one product with 4-bit weights."""
    model, feeds = product(schema.LINEAR, make_blocks(bits))
    run(model, feeds, tmp_path / "optimized.onnx")
    nodes = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert nodes.count("MatMulNBits") == 1 and "DequantizeLinear" not in nodes


def test_offsets_of_zero_are_left_out() -> None:
    none, some = (product(schema.LINEAR, q4_0_like(positive))[0] for positive in (True, False))
    assert "w.offset" not in none.graph.initializers and "w.offset" in some.graph.initializers
    assert [node.op_type for node in none.graph].count("MatMul") == 1
    assert none.graph.initializers["w.codes"].const_value.nbytes == INPUTS * OUTPUTS // 2


def test_blocks_need_a_newer_opset() -> None:
    assert product(schema.LINEAR, make_blocks(4))[0].opset_imports[""] == OPSET
