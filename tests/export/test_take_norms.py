"""Products that take over the norm in front of them: when they do, and that nothing else changes."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from kvedge.export.take_norms import give_norm_back, take_norms

HEAD = """<ir_version: 10, opset_import: ["": 20, "kvedge": 1, "com.microsoft": 1]>
g (float[1,N,64] x, float[1,N,64] skip, float[1,1,64] one, float[64] gamma, uint8[2,2,320] w) => ({outputs}) {{
"""
SKIP_NORM = "h, m, i, s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (x, skip, gamma)\n"
NORM = "h = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-6> (x, gamma)\n"
PRODUCT = "y = kvedge.BlockLinear <bits = 4, outputs = 32, epsilon = 0.0> (h, w)\n"


def model_of(body: str, outputs: str = "float[1,N,32] y") -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(HEAD.format(outputs=outputs) + body + "}"))


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def inputs_of(node: ir.Node) -> list[str | None]:
    return [value and value.name for value in node.inputs]


@pytest.mark.parametrize(("norm", "want"), [(NORM, ["x", "w", "gamma"]), (SKIP_NORM, ["x", "w", "gamma", "skip"])])
def test_one_product_takes_the_norm(norm: str, want: list[str]) -> None:
    model = model_of(norm + PRODUCT)
    take_norms(model)
    (node,) = model.graph
    assert [name for name in inputs_of(node) if name] == want and len(node.outputs) == 1
    assert node.attributes["epsilon"].as_float() == pytest.approx(1e-6 if norm is NORM else 1e-5)
    take_norms(model)
    assert ops(model) == ["BlockLinear"]


@pytest.mark.parametrize("outputs", ["float[1,N,32] y, float[1,N,64] z", "float[1,N,32] y, float[1,N,64] s"])
def test_the_sum_goes_on(outputs: str) -> None:
    """To whoever read it, in front of the product too, and out of the graph."""
    reader = "z = Neg (s)\n" if " z" in outputs else ""
    model = model_of(SKIP_NORM + reader + PRODUCT, outputs)
    take_norms(model)
    node = model.graph[0]
    assert node.op_type == "BlockLinear" and "SkipSimplifiedLayerNormalization" not in ops(model)
    assert (model.graph[1].inputs[0] if reader else model.graph.outputs[1]) is node.outputs[1]
    onnx.checker.check_model(ir.serde.serialize_model(model), check_custom_domain=False)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (NORM + PRODUCT + PRODUCT.replace("y =", "z ="), "float[1,N,32] y, float[1,N,32] z"),
        (NORM + PRODUCT, "float[1,N,32] y, float[1,N,64] h"),
        (SKIP_NORM.replace("(x, skip", "(x, one") + PRODUCT, "float[1,N,32] y"),
        (NORM.replace("axis = -1", "axis = 1") + PRODUCT, "float[1,N,32] y"),
        (NORM + "y = Neg (h)\n", "float[1,N,64] y"),
    ],
    ids=["two products", "an output of the graph", "what is broadcast", "another axis", "no product"],
)
def test_norms_that_stay(body: str, outputs: str) -> None:
    model = model_of(body, outputs)
    before = [(node.op_type, inputs_of(node)) for node in model.graph]
    take_norms(model)
    assert [(node.op_type, inputs_of(node)) for node in model.graph] == before


@pytest.mark.parametrize("norm", [NORM, SKIP_NORM])
def test_norms_come_back(norm: str) -> None:
    model = model_of(norm + PRODUCT)
    take_norms(model)
    (product,) = model.graph
    meets = give_norm_back(model.graph, product)
    made = meets.producer()
    assert made is not None and made.op_type in norm
    assert inputs_of(made) == (["x", "gamma"] if norm is NORM else ["x", "skip", "gamma"])
