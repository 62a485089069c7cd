"""Products with weights in blocks: bytes as they are described, every instruction set, and the operators."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from kvedge.plugins import library, schema
from kvedge.plugins.native import NativeKernels, native
from kvedge.plugins.reference.linear import (
    Blocks,
    Norm,
    gated,
    linear,
    linear_of_many,
    normalized,
    quantize_rows,
    read_blocks,
    rounded_to_brain,
    store_blocks,
)
from kvedge.targets.block_weights import BITS, BLOCK, FOUR, TILE, block_bytes, code_bytes, stored_shape

SHAPES = {
    "one block": (16, 32),
    "a partial tile": (40, 64),
    "one output": (1, 96),
    "as in a model": (576, 1536),
    "long rows": (16, 2240),
}
every_bits = pytest.mark.parametrize("bits", BITS)


def random_blocks(bits: int, outputs: int, inputs: int, seed: int = 0) -> Blocks:
    rng = np.random.default_rng(seed)
    per_row = inputs // BLOCK
    return Blocks(
        bits=bits,
        codes=rng.integers(0, 1 << bits, (outputs, inputs), dtype=np.uint8),
        scale=(rng.standard_normal((outputs, per_row)) / (1 << bits)).astype(np.float16),
        minimum=rng.standard_normal((outputs, per_row)).astype(np.float16),
    )


def rows_of(count: int, inputs: int) -> np.ndarray:
    """Rows with quiet and loud blocks."""
    rng = np.random.default_rng(1)
    loudness = np.exp(3 * rng.standard_normal((count, inputs // BLOCK, 1)))
    return (rng.standard_normal((count, inputs // BLOCK, BLOCK)) * loudness).reshape(count, inputs).astype(np.float32)


def expected(kernels: NativeKernels, x: np.ndarray, blocks: Blocks, bias: np.ndarray | None = None) -> np.ndarray:
    """What the kernels shall give, by the way they take for so many rows."""
    many = kernels.many_rows is not None and len(x) >= kernels.many_rows
    return linear_of_many(x, blocks, bias) if many else linear(x, blocks, bias)


@every_bits
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_stored_is_read(bits: int, shape: str) -> None:
    blocks = random_blocks(bits, *SHAPES[shape])
    stored = store_blocks(blocks)
    assert stored.shape == stored_shape(bits, *SHAPES[shape]) and stored.flags.c_contiguous
    found = read_blocks(stored, bits, len(blocks.codes))
    for name in ("codes", "scale", "minimum"):
        assert np.array_equal(getattr(found, name), getattr(blocks, name))


@every_bits
def test_bytes_lie_where_the_layout_says(bits: int) -> None:
    blocks = random_blocks(bits, 40, 64)
    stored = store_blocks(blocks)
    for output, inp in ((0, 0), (5, 7), (17, 33), (39, 63), (22, 44)):
        tile = stored[output // TILE, inp // BLOCK]
        lane, four, within = output % TILE, inp % BLOCK // FOUR, inp % FOUR
        if bits == 8:
            code = tile[64 * four + 4 * lane + within]
        else:
            code = tile[64 * (four // 2) + 4 * lane + within] >> 4 * (four % 2) & 15
        assert code == blocks.codes[output, inp]
        halves = tile[code_bytes(bits) :].view(np.float16)
        assert halves[lane] == blocks.scale[output, inp // BLOCK]
        assert halves[TILE + lane] == blocks.minimum[output, inp // BLOCK]
    assert stored.shape[-1] == block_bytes(bits)


@every_bits
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 5, 15, 16, 17, 32, 37, 80])
def test_as_the_reference(forced: NativeKernels, bits: int, shape: str, count: int) -> None:
    """Any number of rows, with and without a bias."""
    outputs, inputs = SHAPES[shape]
    blocks = random_blocks(bits, outputs, inputs)
    stored, x = store_blocks(blocks), rows_of(count, inputs)
    bias = np.random.default_rng(2).standard_normal(outputs).astype(np.float32)
    want = expected(forced, x, blocks, bias)
    limit = 2e-6 * (np.abs(x) @ np.abs(blocks.weights()).T + 1)
    assert (np.abs(forced.linear(x, stored, bits, outputs, bias) - want) <= limit).all()
    assert (np.abs(forced.linear(x, stored, bits, outputs) - (want - bias)) <= limit).all()


@every_bits
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_those_beside_it(forced: NativeKernels, bits: int, shape: str) -> None:
    """To the bit, within each of the two ways that products are made."""
    outputs, inputs = SHAPES[shape]
    stored, x = store_blocks(random_blocks(bits, outputs, inputs)), rows_of(70, inputs)
    many = forced.many_rows or 70
    for counts in ([count for count in (1, 2, 3, 7, 8, 9, 15) if count < many], [many, 17, 31, 33, 48, 70]):
        whole = forced.linear(x[: counts[-1]], stored, bits, outputs)
        for count in counts:
            assert np.array_equal(forced.linear(x[:count], stored, bits, outputs), whole[:count])


@every_bits
@pytest.mark.parametrize("activation", schema.ACTIVATIONS)
@pytest.mark.parametrize("count", [9, 40])
def test_gated_as_the_reference(forced: NativeKernels, bits: int, activation: str, count: int) -> None:
    """Also where gates are far from zero."""
    gate, up = (random_blocks(bits, 48, 64, seed) for seed in (3, 4))
    stored, x = np.concatenate([store_blocks(gate), store_blocks(up)]), rows_of(count, 64)
    x[0] *= 100
    of_gate, of_up = expected(forced, x, gate), expected(forced, x, up)
    want = gated(of_gate, of_up, activation)
    limit = 4e-6 * np.abs(of_gate) * (np.abs(x) @ np.abs(up.weights()).T) + 1e-5
    limit += 4e-6 * np.abs(of_up) * (np.abs(x) @ np.abs(gate.weights()).T)
    assert (np.abs(forced.gated(x, stored, bits, 48, activation) - want) <= limit).all()


def norm_of(count: int, inputs: int, *, skips: bool) -> Norm:
    rng = np.random.default_rng(5)
    skip = rng.standard_normal((count, inputs)).astype(np.float32) if skips else None
    return Norm(gamma=rng.standard_normal(inputs).astype(np.float32), epsilon=1e-5, skip=skip)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_normalized_as_the_reference(forced: NativeKernels, count: int, skips: bool) -> None:
    """Within what an input that rounds to the code beside its own can do, and nearly always much closer."""
    blocks, x, norm = random_blocks(4, 40, 64), rows_of(count, 64), norm_of(count, 64, skips=skips)
    inputs, _ = normalized(x, norm)
    error = np.abs(forced.linear(x, store_blocks(blocks), 4, 40, norm=norm) - expected(forced, inputs, blocks))
    size = np.abs(inputs) @ np.abs(blocks.weights()).T + 1
    assert (error <= 1e-2 * size).all() and np.quantile(error / size, 0.8) < 4e-6


@every_bits
def test_largest_codes_do_not_overflow(forced: NativeKernels, bits: int) -> None:
    blocks = Blocks(
        bits=bits,
        codes=np.full((16, 64), (1 << bits) - 1, np.uint8),
        scale=np.ones((16, 2), np.float16),
        minimum=np.zeros((16, 2), np.float16),
    )
    for sign, count in ((1, 9), (-1, 9), (1, 20), (-1, 20)):
        x = np.full((count, 64), sign, np.float32)
        found = forced.linear(x, store_blocks(blocks), bits, 16)
        assert np.abs(found - sign * 64 * ((1 << bits) - 1)).max() <= 1e-2


def test_rows_are_rounded_to_half_a_step() -> None:
    x = rows_of(5, 128)
    codes, scale = quantize_rows(x)
    assert np.abs(codes).max() == 127 and (np.abs(codes.reshape(5, -1, BLOCK)).max(-1) == 127).all()
    error = np.abs(codes.reshape(5, -1, BLOCK) * scale[..., None] - x.reshape(5, -1, BLOCK))
    assert (error <= 0.501 * scale[..., None]).all()
    assert not quantize_rows(np.zeros((1, 32), np.float32))[0].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [9, 35])
def test_what_is_no_number_stays_none(forced: NativeKernels, value: float, count: int) -> None:
    """In its own row only."""
    x = rows_of(count, 64)
    x[4, 40] = value
    finite = np.isfinite(forced.linear(x, store_blocks(random_blocks(4, 16, 64)), 4, 16)).all(1)
    assert finite.tolist() == [row != 4 for row in range(count)]


def test_rounding_to_brain_floats() -> None:
    """To eight bits, ties to even."""
    found = rounded_to_brain(np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159274, 0], np.float32))
    assert found.tolist() == [1, 1, 1 + 2**-6, -3.140625, 0]


def session_of(
    op: str,
    inputs: dict[str, tuple[int, list[object]]],
    attributes: dict[str, float | str],
    outputs: tuple[str, ...] = ("y",),
) -> ort.InferenceSession:
    """`inputs` by letter, in the order of the operator's own; those that are left out are absent."""
    places = ("ids", "w") if op == schema.EMBEDDING else ("x", "w", "gamma", "skip", "b")
    last = max(places.index(name) for name in inputs)
    given = [name if name in inputs else "" for name in places[: last + 1]]
    node = helper.make_node(op, given, list(outputs), domain=schema.DOMAIN)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    infos = [helper.make_tensor_value_info(name, *facts) for name, facts in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "g", infos, results)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(schema.DOMAIN, schema.VERSION)]
    options = ort.SessionOptions()
    library.register(options)
    content = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


X, W, B = (TensorProto.FLOAT, None), (TensorProto.UINT8, [None] * 3), (TensorProto.FLOAT, [None])
PRODUCT: dict[str, float | str] = {"epsilon": 0.0}


@every_bits
def test_linear_operator(bits: int) -> None:
    blocks, x = random_blocks(bits, 40, 64), rows_of(21, 64)
    bias = np.ones(40, np.float32)
    session = session_of(schema.LINEAR, {"x": X, "w": W, "b": B}, PRODUCT | {"bits": bits, "outputs": 40})
    for rows in (x, x.reshape(3, 7, 64), x[0], x[:0]):
        got = session.run(None, {"x": rows, "w": store_blocks(blocks), "b": bias})[0]
        want = expected(native(), rows.reshape(-1, 64), blocks, bias) if rows.size else np.empty((0, 40))
        assert got.shape == (*rows.shape[:-1], 40) and np.abs(got.reshape(-1, 40) - want).max(initial=0) < 1e-3


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("op", [schema.LINEAR, schema.GATED])
def test_operators_normalize(op: str, skips: bool) -> None:
    """As the same product of what the reference's norm gives; the sum is exact."""
    blocks, x, norm = random_blocks(8, 48, 64), rows_of(21, 64), norm_of(21, 64, skips=skips)
    weights = store_blocks(blocks) if op == schema.LINEAR else np.concatenate([store_blocks(blocks)] * 2)
    attributes = {"bits": 8, "outputs": 48, "epsilon": norm.epsilon}
    attributes |= {} if op == schema.LINEAR else {"activation": schema.SILU}
    given = {"x": x, "w": weights, "gamma": norm.gamma} | ({} if norm.skip is None else {"skip": norm.skip})
    facts = {"x": X, "w": W, "gamma": B, "skip": X}
    wanted = {name: facts[name] for name in given}
    got, total = session_of(op, wanted, attributes, ("y", "sum")).run(None, given)
    (alone,) = session_of(op, wanted, attributes).run(None, given)
    assert np.array_equal(alone, got), "also where nobody wants the sum"
    inputs, want_total = normalized(x, norm)
    assert np.array_equal(total, want_total)
    product = expected(native(), inputs, blocks)
    want = product if op == schema.LINEAR else gated(product, product, schema.SILU)
    assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()


@every_bits
def test_embedding_operator(bits: int) -> None:
    blocks, ids = random_blocks(bits, 40, 64), np.array([[0, 39, 17], [16, 15, 0]])
    session = session_of(schema.EMBEDDING, {"ids": (TensorProto.INT64, None), "w": W}, {"bits": bits, "outputs": 40})
    got = session.run(None, {"ids": ids, "w": store_blocks(blocks)})[0]
    assert np.array_equal(got, blocks.weights()[ids])
    for wrong in (40, -1):
        with pytest.raises(Exception, match=f"BlockEmbedding: ids: expected 0 to 39, got {wrong}"):
            session.run(None, {"ids": np.array([wrong]), "w": store_blocks(blocks)})


@pytest.mark.parametrize("activation", schema.ACTIVATIONS)
def test_gated_operator(activation: str) -> None:
    gate, up, x = random_blocks(4, 48, 64, 3), random_blocks(4, 48, 64, 4), rows_of(21, 64)
    attributes = PRODUCT | {"bits": 4, "outputs": 48, "activation": activation}
    session = session_of(schema.GATED, {"x": X, "w": W}, attributes)
    got = session.run(None, {"x": x, "w": np.concatenate([store_blocks(gate), store_blocks(up)])})[0]
    want = gated(expected(native(), x, gate), expected(native(), x, up), activation)
    assert got.shape == want.shape and np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    with pytest.raises(Exception, match="attribute activation: expected silu or gelu_tanh, got relu"):
        session_of(schema.GATED, {"x": X, "w": W}, attributes | {"activation": "relu"})
    with pytest.raises(Exception, match="attribute outputs: expected a multiple of 16, got 40"):
        session_of(schema.GATED, {"x": X, "w": W}, attributes | {"outputs": 40})


def test_operators_refuse_what_does_not_fit() -> None:
    stored = store_blocks(random_blocks(4, 40, 64))
    session = session_of(schema.LINEAR, {"x": X, "w": W, "b": B}, PRODUCT | {"bits": 4, "outputs": 40})
    bias, x = np.ones(40, np.float32), rows_of(2, 64)
    for feeds, message in (
        ({"x": x[:, :60]}, r"x: expected \[..., a multiple of 32\], got float \[2, 60\]"),
        ({"x": rows_of(2, 96)}, r"weights: expected uint8 .* = \[3, 3, 320\], got uint8 \[3, 2, 320\]"),
        ({"w": stored[:2].copy()}, r"weights: expected uint8 .* = \[3, 2, 320\]"),
        ({"b": bias[:39]}, r"bias: expected float \[outputs\] = \[40\]"),
    ):
        with pytest.raises(Exception, match="BlockLinear: " + message):
            session.run(None, {"x": x, "w": stored, "b": bias} | feeds)
    attributes = PRODUCT | {"bits": 4, "outputs": 40}
    session = session_of(schema.LINEAR, {"x": X, "w": W, "gamma": B, "skip": X}, attributes)
    whole = {"x": x, "w": stored, "gamma": np.ones(64, np.float32), "skip": x}
    for feeds, message in (
        ({"gamma": np.ones(63, np.float32)}, r"gamma: expected float \[inputs\] = \[64\]"),
        ({"skip": x[:1]}, r"skip: expected the shape of x, got float \[1, 64\]; x is float \[2, 64\]"),
    ):
        with pytest.raises(Exception, match="BlockLinear: " + message):
            session.run(None, whole | feeds)
    session = session_of(schema.LINEAR, {"x": X, "w": W, "skip": X}, attributes)
    with pytest.raises(Exception, match=r"BlockLinear: skip: expected none without gamma, got float \[2, 64\]"):
        session.run(None, {"x": x, "w": stored, "skip": x})
    with pytest.raises(Exception, match="attribute epsilon: expected a number"):
        session_of(schema.LINEAR, {"x": X, "w": W}, {"bits": 4, "outputs": 40})
    with pytest.raises(Exception, match="attribute bits: expected 4 or 8, got 5"):
        session_of(schema.LINEAR, {"x": X, "w": W}, PRODUCT | {"bits": 5, "outputs": 40})
