"""A graph cut into the graphs of its blocks of layers, to be built and run one after the other.

Each keeps the inputs that it reads, the outputs of its layers, and hidden states: those that earlier blocks hand on to
it, and those that it hands on. Weights stay where they are; a tied embedding belongs to the first and the last block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from kvedge.export.build.cuts import Cuts
from kvedge.export.build.flow import Flow
from kvedge.targets import names
from kvedge.targets.errors import require
from kvedge.targets.hidden import Hidden

_FLOATS = ("float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Graphs in the order in which they run, and what they hand on."""

    graphs: tuple[onnx.ModelProto, ...]
    hidden: tuple[Hidden, ...]


def cut(model: onnx.ModelProto, flow: Flow, cuts: Cuts, layers: Sequence[int]) -> Blocks:
    """Cut a graph.

    Args:
        layers: indices of its attention layers.

    Raises:
        KvedgeError: a value that would cross is not of the form of hidden states.
    """
    handed_on = _handed_on(flow, cuts)
    types = _hidden_types(model, handed_on)
    parts = _Parts(model, handed_on, types)
    outputs = _outputs(model.graph, flow, cuts, layers)
    graphs = tuple(parts.extract(block, wanted) for block, wanted in enumerate(outputs))
    return Blocks(graphs=graphs, hidden=tuple(_hidden(value) for value in types.values()))


def _block(cuts: Cuts, node: int) -> int:
    return bisect_right(cuts.ends, node)


def _handed_on(flow: Flow, cuts: Cuts) -> dict[str, tuple[int, str]]:
    """Values that cross: which block makes each, and its name then."""
    found: dict[str, tuple[int, str]] = {}
    counts = [0] * len(cuts.ends)
    for name, made in flow.made.items():
        block = _block(cuts, made)
        if _block(cuts, flow.read.get(name, made)) > block:
            found[name] = block, names.hidden(block, counts[block])
            counts[block] += 1
    return found


def _outputs(graph: onnx.GraphProto, flow: Flow, cuts: Cuts, layers: Sequence[int]) -> list[list[onnx.ValueInfoProto]]:
    """Outputs of the graph by the block that has them: where they are made, else that of their layer."""
    found: list[list[onnx.ValueInfoProto]] = [[] for _ in cuts.ends]
    by_layer = {names.pages_read(layer): flow.made[names.hot_out(layer)] for layer in layers}
    for value in graph.output:
        made = flow.made[value.name] if value.name in flow.made else by_layer[value.name]
        found[_block(cuts, made)].append(value)
    return found


def _hidden_types(model: onnx.ModelProto, handed_on: dict[str, tuple[int, str]]) -> dict[str, onnx.ValueInfoProto]:
    """Types of the values that cross, by their old names, with the dimensions of the tokens as the graph calls them."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    known = {value.name: value for value in inferred.value_info}
    (ids,) = (value for value in model.graph.input if value.name == names.INPUT_IDS)
    types = {}
    for old, (_, new) in handed_on.items():
        require(old in known, f"the value {old} between two blocks", expected="a known shape", got="none")
        made = onnx.ValueInfoProto()
        made.CopyFrom(known[old])
        made.name = new
        _check(old, made)
        for dim, of_ids in zip(made.type.tensor_type.shape.dim, ids.type.tensor_type.shape.dim, strict=False):
            dim.CopyFrom(of_ids)
        types[old] = made
    return types


def _check(name: str, value: onnx.ValueInfoProto) -> None:
    tensor = value.type.tensor_type
    dims = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim]
    fine = len(dims) > 2 and dims[0] in (1, *_symbols(dims)) and dims[1] in _symbols(dims)
    fine = fine and all(isinstance(dim, int) for dim in dims[2:]) and _dtype(value) in _FLOATS
    got = f"{_dtype(value)} {dims}"
    require(fine, f"the value {name} between two blocks", expected="floats [batch, new, width]", got=got)


def _symbols(dims: Iterable[int | str]) -> list[str]:
    return [dim for dim in dims if isinstance(dim, str)]


def _dtype(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _hidden(value: onnx.ValueInfoProto) -> Hidden:
    widths = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[2:])
    return Hidden(name=value.name, dtype=_dtype(value), widths=widths)


class _Parts:
    """Takes blocks out of a graph.

    Args:
        handed_on: values that cross, see `_handed_on`; types: of these.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        handed_on: dict[str, tuple[int, str]],
        types: dict[str, onnx.ValueInfoProto],
    ) -> None:
        self._model, self._handed_on, self._types = model, handed_on, types
        self._makers = {name: number for number, node in enumerate(model.graph.node) for name in node.output if name}

    def extract(self, block: int, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """A block's graph, followed back from what it gives."""
        gives = [name for name, (maker, _) in self._handed_on.items() if maker == block]
        takes = {name for name, (maker, _) in self._handed_on.items() if maker < block}
        kept, read = self._follow([*gives, *(value.name for value in outputs)], takes)
        whole = self._model.graph
        graph = onnx.GraphProto(name=f"{whole.name}.{block}")
        graph.node.extend(self._renamed(whole.node[number]) for number in sorted(kept))
        graph.input.extend(value for value in whole.input if value.name in read)
        graph.input.extend(self._types[name] for name in self._handed_on if name in takes & read)
        graph.output.extend([*(self._types[name] for name in gives), *outputs])
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in read)
        made = {name for number in kept for name in whole.node[number].output}
        graph.value_info.extend(value for value in whole.value_info if value.name in made - set(self._handed_on))
        opsets, version = self._model.opset_import, self._model.ir_version
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version)

    def _follow(self, wanted: Sequence[str], known: set[str]) -> tuple[set[int], set[str]]:
        """Nodes that make some values of others that are known, and all values that they read."""
        kept: set[int] = set()
        read: set[str] = set()
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            if name in known or self._makers.get(name) is None or self._makers[name] in kept:
                continue
            kept.add(self._makers[name])
            inputs = self._model.graph.node[self._makers[name]].input
            read.update(inputs)
            waiting += inputs
        return kept, read

    def _renamed(self, node: onnx.NodeProto) -> onnx.NodeProto:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for values in (made.input, made.output):
            values[:] = [self._handed_on[name][1] if name in self._handed_on else name for name in values]
        return made
