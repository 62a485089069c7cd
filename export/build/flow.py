"""What of a graph depends on the tokens' embeddings, in order, and where it can be cut between layers.

All else - tables, counts, angles, shapes - is small, and is computed again wherever it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import onnx

from kvedge.targets import names
from kvedge.targets.errors import require

SMALL = 4096
"""Bytes of a constant that counts for nothing: several blocks may have it."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The nodes through which hidden states flow.

    Args:
        nodes: in order.
        made: which of them makes a value; read: which of them reads it last.
        ends: one for each layer, where it ends at best: numbers of nodes, the last one that of all.
        sizes: bytes of the weights of each layer, with embedding and head in the first and the last.
        stored: bytes of all weights, each counted once.
    """

    nodes: Sequence[onnx.NodeProto]
    made: dict[str, int]
    read: dict[str, int]
    ends: Sequence[int]
    sizes: Sequence[int]
    stored: int


def find_flow(graph: onnx.GraphProto, layers: Sequence[int]) -> Flow:
    """Follow the tokens through a graph whose nodes are in order.

    Args:
        layers: indices of its attention layers.

    Raises:
        KvedgeError: a layer whose pages do not depend on the tokens, or no place between two layers.
    """
    nodes = _flowing(graph)
    made = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    read = {name: number for number, node in enumerate(nodes) for name in node.input if name in made}
    pages = [names.hot_out(layer) for layer in layers]
    missing = [name for name in pages if name not in made]
    require(not missing, "the graph", expected="pages that depend on the tokens", got=f"{', '.join(missing)} do not")
    barred = {value.name for value in graph.output} | _of_some_tokens(graph)
    crossing = _crossing(made, read, barred, len(nodes))
    ends = [_best_end(crossing, made[one], made[next_]) for one, next_ in pairwise(pages)] + [len(nodes)]
    weights = _Weights(graph, made)
    sizes = [weights.bytes_of(nodes[first:last]) for first, last in pairwise((0, *ends))]
    return Flow(nodes=nodes, made=made, read=read, ends=ends, sizes=sizes, stored=weights.bytes_of(nodes))


def _flowing(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes that depend on which tokens there are; how many is known from the input itself."""
    known, nodes = {names.INPUT_IDS}, []
    for node in graph.node:
        asks_how_many = node.op_type == "Shape" and node.input[0] == names.INPUT_IDS
        if not asks_how_many and known.intersection(node.input):
            nodes.append(node)
            known.update(node.output)
    return nodes


def _of_some_tokens(graph: onnx.GraphProto) -> set[str]:
    """Values that have those tokens only that get logits: the last layer may drop the others early."""
    known = {names.LOGITS_INDEX}
    for node in graph.node:
        if known.intersection(node.input):
            known.update(node.output)
    return known


def _crossing(made: dict[str, int], read: dict[str, int], barred: set[str], count: int) -> list[float]:
    """Values made before and read after each place; infinitely many where one of them may not cross."""
    steps = [0.0] * (count + 2)
    for name, last in read.items():
        weight = count if name in barred else 1
        steps[made[name] + 1] += weight
        steps[last + 1] -= weight
    return [number if number < count else math.inf for number in accumulate(steps)]


def _best_end(crossing: Sequence[float], one: int, next_: int) -> int:
    """The latest of the places between two nodes where the fewest values cross."""
    place = min(range(one + 1, next_ + 1), key=lambda place: (crossing[place], -place))
    require(crossing[place] < math.inf, "the graph", expected="a place to cut between two layers", got="none")
    return place


class _Weights:
    """Stored bytes of what nodes read that does not depend on the tokens, large constants only."""

    def __init__(self, graph: onnx.GraphProto, flowing: Iterable[str]) -> None:
        self._sizes = {tensor.name: _bytes(tensor) for tensor in graph.initializer}
        made = set(flowing)
        self._producers = {name: node for node in graph.node for name in node.output if name not in made}

    def bytes_of(self, nodes: Iterable[onnx.NodeProto]) -> int:
        found: set[str] = set()
        waiting = [name for node in nodes for name in node.input]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._producers[name].input if name in self._producers else ()
        return sum(size for size in (self._sizes.get(name, 0) for name in found) if size > SMALL)


def _bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a stored tensor, in the graph or beside it."""
    for entry in tensor.external_data:
        if entry.key == "length":
            return int(entry.value)
    return len(tensor.raw_data) or tensor.ByteSize()
