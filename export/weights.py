"""How weights are stored: as they are, or as float16 with a cast back in the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_SMALLEST = 1024  # elements; norms and biases stay float32


def store_half(model: ir.Model) -> None:
    """Store large float32 weights as float16, in place; the graph casts them back and computes in float32.

    Halves the file. The CPU engine folds the casts when it loads, so memory at run time stays that of float32.
    """
    graph = model.graph
    casts = []
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < _SMALLEST:
            continue
        half = ir.Value(
            name=f"{name}.half",
            type=ir.TensorType(ir.DataType.FLOAT16),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=ir.tensor(_to_half(tensor.numpy()), name=f"{name}.half"),
        )
        graph.initializers.pop(name)
        graph.register_initializer(half)
        cast = ir.node("Cast", [half], {"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].type, cast.outputs[0].shape = value.type, value.shape
        value.replace_all_uses_with(cast.outputs[0])
        casts.append(cast)
    graph.insert_before(graph[0], casts)


def _to_half(weights: np.ndarray) -> np.ndarray:
    limit = float(np.finfo(np.float16).max)
    return np.asarray(np.clip(weights, -limit, limit), np.float16)
