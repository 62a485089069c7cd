"""RMS norms, which ONNX Runtime has fused operators for, in standard ones."""

from __future__ import annotations

import onnx_ir as ir

from kvedge.export.block_weights import optional_input
from kvedge.export.standard.expr import Expr, Recorder
from kvedge.plugins import schema


def norm(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """SimplifiedLayerNormalization: the RMS norm of its first input."""
    x, gamma = node.inputs
    assert x is not None and gamma is not None
    return [_normed(recorder.of(x), gamma, node)]


def skip_norm(node: ir.Node, recorder: Recorder) -> list[Expr | None]:
    """SkipSimplifiedLayerNormalization: the RMS norm of a sum, and the sum as its fourth output."""
    x, skip, gamma = node.inputs[:3]
    assert x is not None and skip is not None and gamma is not None
    total = recorder.of(x) + recorder.of(skip)
    return [_normed(total, gamma, node), None, None, total]


def product_input(node: ir.Node, recorder: Recorder) -> tuple[Expr, Expr]:
    """What meets the weights of a product that may have taken a norm over, and what that norm was made of."""
    x, gamma, skip = node.inputs[0], optional_input(node, schema.GAMMA), optional_input(node, schema.SKIP)
    assert x is not None
    total = recorder.of(x) if skip is None else recorder.of(x) + recorder.of(skip)
    return (total if gamma is None else _normed(total, gamma, node)), total


def _normed(x: Expr, gamma: ir.Value, node: ir.Node) -> Expr:
    root = ((x * x).mean(-1) + node.attributes["epsilon"].as_float()).sqrt()
    return x / root * x.recorder.of(gamma)
