"""Formulas over tensors of a graph in the making: an Expr is a value and its element type, operators add nodes.

Python numbers take the type of the tensor that they meet; numpy arrays become constants, equal ones only once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

BOOL, INT32, INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64
FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16

Array = NDArray[np.float32] | NDArray[np.int32] | NDArray[np.int64] | NDArray[np.bool_] | NDArray[np.float16]


class Recorder:
    """Nodes in the order in which they were made, and their constants.

    part: how names of the nodes to come begin, for messages of those who read the graph.
    """

    def __init__(self) -> None:
        self.part = "plain"
        self._names = itertools.count()
        self._nodes: list[ir.Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Expr] = {}
        self._stored: dict[str, Expr] = {}

    def take_nodes(self) -> list[ir.Node]:
        """The nodes made since this was last called: they are the caller's to put into a graph."""
        nodes, self._nodes = self._nodes, []
        return nodes

    @property
    def constants(self) -> list[ir.Value]:
        """Initializers that nodes read."""
        made = (*self._constants.values(), *self._stored.values())
        return [constant.value for constant in made if constant.value.uses()]

    def of(self, value: ir.Value) -> Expr:
        """A value of known type that is there already."""
        assert value.dtype is not None
        return Expr(self, value, value.dtype)

    def constant(self, array: Array) -> Expr:
        """A constant tensor; the same one for equal arrays."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = ir.tensor(array, name=f"plain.constant.{len(self._constants)}")
            self._constants[key] = Expr(self, _initializer(tensor), tensor.dtype)
        return self._constants[key]

    def stored(self, tensor: ir.TensorProtocol) -> Expr:
        """A constant that keeps its name, by which it is told from others: weights, whose bytes are not looked at."""
        assert tensor.name is not None
        if tensor.name not in self._stored:
            self._stored[tensor.name] = Expr(self, _initializer(tensor), tensor.dtype)
        return self._stored[tensor.name]

    def node(
        self,
        name: str,
        inputs: Sequence[Expr],
        dtype: ir.DataType,
        attributes: Mapping[str, int | str | list[int]] | None = None,
    ) -> Expr:
        """The output of a new node."""
        node = ir.node(
            name,
            [each.value for each in inputs],
            dict(attributes or {}),
            name=f"{self.part}.{name}.{next(self._names)}",
        )
        node.outputs[0].type = ir.TensorType(dtype)
        self._nodes.append(node)
        return Expr(self, node.outputs[0], dtype)


def _initializer(tensor: ir.TensorProtocol) -> ir.Value:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)


@dataclass(frozen=True, eq=False)
class Expr:
    """A tensor in the graph of `recorder`."""

    recorder: Recorder
    value: ir.Value
    dtype: ir.DataType

    def __add__(self, other: Operand) -> Expr:
        return self._meet("Add", other)

    def __sub__(self, other: Operand) -> Expr:
        return self._meet("Sub", other)

    def __mul__(self, other: Operand) -> Expr:
        return self._meet("Mul", other)

    def __truediv__(self, other: Operand) -> Expr:
        assert self.dtype == FLOAT
        return self._meet("Div", other)

    def __floordiv__(self, other: Operand) -> Expr:
        """Quotient of integers that are not negative: Div truncates, which is the floor only there."""
        assert self.dtype == INT32
        return self._meet("Div", other)

    def __mod__(self, other: Operand) -> Expr:
        """Remainder of integers that are not negative."""
        assert self.dtype == INT32
        return self._meet("Mod", other)

    def __matmul__(self, other: Operand) -> Expr:
        return self._meet("MatMul", other)

    def __neg__(self) -> Expr:
        return self._alone("Neg")

    def __lt__(self, other: Operand) -> Expr:
        return self._meet("Less", other, BOOL)

    def __le__(self, other: Operand) -> Expr:
        return self._meet("LessOrEqual", other, BOOL)

    def __gt__(self, other: Operand) -> Expr:
        return self._meet("Greater", other, BOOL)

    def __ge__(self, other: Operand) -> Expr:
        return self._meet("GreaterOrEqual", other, BOOL)

    def __and__(self, other: Operand) -> Expr:
        return self._meet("And", other)

    def __or__(self, other: Operand) -> Expr:
        return self._meet("Or", other)

    def equals(self, other: Operand) -> Expr:
        """Elementwise equality."""
        return self._meet("Equal", other, BOOL)

    def at_least(self, other: Operand) -> Expr:
        """The larger of the two."""
        return self._meet("Max", other)

    def at_most(self, other: Operand) -> Expr:
        """The smaller of the two."""
        return self._meet("Min", other)

    def abs(self) -> Expr:
        """Magnitudes."""
        return self._alone("Abs")

    def floor(self) -> Expr:
        """Largest whole numbers below."""
        return self._alone("Floor")

    def round(self) -> Expr:
        """Nearest whole numbers, ties to even."""
        return self._alone("Round")

    def sqrt(self) -> Expr:
        """Square roots."""
        return self._alone("Sqrt")

    def tanh(self) -> Expr:
        """Hyperbolic tangents."""
        return self._alone("Tanh")

    def sigmoid(self) -> Expr:
        """1 / (1 + exp(-x))."""
        return self._alone("Sigmoid")

    def softmax(self) -> Expr:
        """Softmax over the last axis."""
        return self.recorder.node("Softmax", [self], self.dtype, {"axis": -1})

    def cast(self, dtype: ir.DataType) -> Expr:
        """The same numbers in another type."""
        if dtype == self.dtype:
            return self
        return self.recorder.node("Cast", [self], dtype, {"to": dtype})

    def sum(self, axis: int) -> Expr:
        """Sum over an axis, which stays with one element."""
        return self._reduce("ReduceSum", axis)

    def mean(self, axis: int) -> Expr:
        """Mean over an axis, which stays with one element."""
        return self._reduce("ReduceMean", axis)

    def max(self, axis: int) -> Expr:
        """Largest along an axis, which stays with one element."""
        return self._reduce("ReduceMax", axis)

    def reshape(self, *shape: int) -> Expr:
        """The same elements; one size may be -1, and a size of 0 stays as it is."""
        return self.recorder.node("Reshape", [self, self._int64(shape)], self.dtype)

    def unsqueeze(self, axis: int) -> Expr:
        """With an axis of one element more."""
        return self.recorder.node("Unsqueeze", [self, self._int64((axis,))], self.dtype)

    def squeeze(self, axis: int) -> Expr:
        """Without an axis of one element."""
        return self.recorder.node("Squeeze", [self, self._int64((axis,))], self.dtype)

    def transpose(self, *axes: int) -> Expr:
        """Axes in another order."""
        return self.recorder.node("Transpose", [self], self.dtype, {"perm": list(axes)})

    def part(self, axis: int, start: int, stop: int) -> Expr:
        """Elements [start, stop) along an axis."""
        bounds = [self._int64((number,)) for number in (start, stop, axis)]
        return self.recorder.node("Slice", [self, *bounds], self.dtype)

    def halved(self, axis: int) -> tuple[Expr, Expr]:
        """The two elements of an axis of two, which stays with one."""
        return self.part(axis, 0, 1), self.part(axis, 1, 2)

    def take(self, indices: Operand, axis: int) -> Expr:
        """Elements at int32 indices along an axis."""
        return self.recorder.node("Gather", [self, self._operand(indices)], self.dtype, {"axis": axis})

    def scatter(self, indices: Expr, updates: Expr) -> Expr:
        """A copy with updates [n, ...] at the places that the rows of int32 indices [n, depth] name."""
        return self.recorder.node("ScatterND", [self, indices.cast(INT64), updates], self.dtype)

    def look_up(self, table: NDArray[np.float32]) -> Expr:
        """Entries of a constant table [entries] at these whole numbers."""
        return self.recorder.constant(table).take(self.cast(INT32), 0)

    def size(self, axis: int) -> Expr:
        """int64 [1]: the length of an axis, known when the graph runs."""
        return self.recorder.node("Shape", [self], INT64, {"start": axis, "end": axis + 1})

    def first(self, number: Expr, step: int = 1) -> Expr:
        """Of the first int64 [1] elements every `step`th."""
        bounds = [self._int64((0,)), number, self._int64((0,)), self._int64((step,))]
        return self.recorder.node("Slice", [self, *bounds], self.dtype)

    def after(self, axis: int, start: int) -> Expr:
        """Elements from `start` on along an axis."""
        return self.part(axis, start, np.iinfo(np.int64).max)

    def _meet(self, name: str, other: Operand, dtype: ir.DataType | None = None) -> Expr:
        return self.recorder.node(name, [self, self._operand(other)], dtype or self.dtype)

    def _alone(self, name: str) -> Expr:
        return self.recorder.node(name, [self], self.dtype)

    def _reduce(self, name: str, axis: int) -> Expr:
        return self.recorder.node(name, [self, self._int64((axis,))], self.dtype, {"keepdims": 1})

    def _int64(self, numbers: Sequence[int]) -> Expr:
        return self.recorder.constant(np.array(numbers, np.int64))

    def _operand(self, other: Operand) -> Expr:
        if isinstance(other, Expr):
            return other
        if isinstance(other, int | float):
            return self.recorder.constant(np.array(other, self.dtype.numpy()))
        return self.recorder.constant(other)


Operand = Expr | Array | int | float


def where(condition: Expr, yes: Expr, no: Operand) -> Expr:
    """Elements of `yes` where the condition holds, else of `no`."""
    return condition.recorder.node("Where", [condition, yes, yes._operand(no)], yes.dtype)


def concat(parts: Sequence[Expr], axis: int) -> Expr:
    """Tensors one after the other along an axis."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].recorder.node("Concat", parts, parts[0].dtype, {"axis": axis})
