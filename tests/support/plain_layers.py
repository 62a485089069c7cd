"""The plain graph of one layer on ONNX Runtime, in the place of kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from streams import Stream

from kvedge.export.plain.model import IR_VERSION, OPSET, layer_model
from kvedge.export.plain.places import GraphSize
from kvedge.export.standard.expr import Expr, Recorder
from kvedge.plugins.reference.attend import Attended
from kvedge.plugins.step import PagedStep
from kvedge.targets.spec import LayerSpec


def session_of(model: ir.Model) -> ort.InferenceSession:
    """A model that holds its weights, as it is."""
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])


def run_formula(formula: Callable[..., Expr | tuple[Expr, ...]], *arrays: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime makes of a formula of these inputs."""
    recorder = Recorder()
    inputs = [
        ir.Value(name=f"x.{number}", type=ir.TensorType(ir.DataType.from_numpy(x.dtype)), shape=ir.Shape(x.shape))
        for number, x in enumerate(arrays)
    ]
    made = formula(*map(recorder.of, inputs))
    outputs = [each.value for each in (made if isinstance(made, tuple) else (made,))]
    for number, output in enumerate(outputs):
        output.name = f"y.{number}"
    constants, nodes = recorder.constants, recorder.take_nodes()
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=constants, opset_imports={"": OPSET}, name="formula")
    feeds = {f"x.{number}": x for number, x in enumerate(arrays)}
    return list(session_of(ir.Model(graph, ir_version=IR_VERSION)).run(None, feeds))


def size_of(stream: Stream, chunk: int) -> GraphSize:
    """The sizes of a stream's pools and tables."""
    packs = stream.packed is not None
    return GraphSize(
        chunk=chunk,
        hot_pages=len(stream.hot),
        hot_slots=stream.hot_table.shape[1],
        packed_pages=len(stream.packed) if packs else 0,
        packed_slots=stream.packed_table.shape[1] if packs else 0,
    )


def plain_kernels(stream: Stream, chunk: int, spare: int = 0) -> SimpleNamespace:
    """Kernels for steps of at most `chunk` tokens of that stream, each fed with `spare` more than it has, if they fit.

    The graph does all in one: seal and append rest.
    """
    session = session_of(layer_model(stream.layer, size_of(stream, chunk), stream.rope, stream.bias))
    wanted, results = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))

    def attend(layer: LayerSpec, step: PagedStep, *, interleaved: bool) -> Attended:
        assert interleaved == stream.rope.interleaved
        count = int(step.num_new[0])
        feeds = {name: _feed(name, getattr(step, name), min(count + spare, chunk)) for name in wanted}
        found = dict(zip(results, session.run(results, feeds), strict=True))
        step.hot[...] = found["hot_out"]
        if step.packed is not None:
            step.packed[...] = found["packed_out"]
        assert not found["out"][:, count:].any()
        out = found["out"][:, :count].reshape(1, count, layer.heads, layer.head_dim)
        return Attended(out=out, pages_read=found["pages_read"])

    return SimpleNamespace(seal=_rest, attend=attend, append=_rest)


def _rest(layer: LayerSpec, step: PagedStep) -> None:
    pass


def _feed(name: str, array: np.ndarray, new: int) -> np.ndarray:
    """Tokens [1, heads, n, D] become [1, N, heads * D]; they and angles are filled up to N with other tokens' noise."""
    if name in ("q", "k", "v"):
        array = np.moveaxis(array, 1, 2).reshape(1, array.shape[2], -1)
    elif name not in ("sink_cos", "sink_sin"):
        return array
    return np.resize(array, (1, new, array.shape[2]))
