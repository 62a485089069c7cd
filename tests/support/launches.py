"""What the Python side launches in a step, and whether that is what a driver's stand-in was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from kernel_cases import CASES
from launch_nodes import Node
from stand_in_driver import Call, only
from streams import make_layer

from kvedge.plugins.cuda import attention, kernels
from kvedge.plugins.cuda.compile import Compiled
from kvedge.plugins.cuda.seal import bias_rows_kernel
from kvedge.plugins.cuda.step_tensors import StepTensors
from kvedge.plugins.key_bias import KeyBias
from kvedge.targets.kinds import Kind

Launches = dict[str, tuple[tuple[int, ...], dict[str, Any]]]
"""Grid and arguments by kernel."""

ORDER = ("queries", "bias_rows", "seal", "attend", "merge", "append")


class _Recorder:
    """Stands for a kernel: keeps grids and arguments of its launches."""

    def __init__(self, kernel: Any, launches: Launches) -> None:
        self.arg_names, self._name, self._launches = kernel.arg_names, kernel.fn.__name__, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(**arguments: Any) -> None:
            self._launches[self._name.removesuffix("_kernel")] = ((*grid, 1, 1)[:3], arguments)

        return launch


def python_launches(node: Node) -> Launches:
    """What the Python side launches in the node's step."""
    made: Launches = {}
    with _recorded(made):
        step, triton = node.step(), kernels.TritonKernels()
        triton.seal(node.layer, step)
        triton.attend(node.layer, step, interleaved=False)
        triton.append(node.layer, step)
    if node.bias is not None:
        made["bias_rows"] = (1, 1, 1), rows_of_bias(node)
    return made


@contextmanager
def _recorded(made: Launches) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, names in ((attention, ("queries", "attend", "merge")), (kernels, ("seal", "append"))):
            for name in names:
                kernel = getattr(module, f"{name}_kernel")
                patch.setattr(module, f"{name}_kernel", _Recorder(kernel, made))
        yield


def bias_of_pairs(pairs: int) -> KeyBias:
    """Of channels in no order."""
    channels = np.random.default_rng(0).permutation(16)[: 2 * pairs].astype(np.int32)
    return KeyBias(page=np.zeros((2, 2 * pairs, 8), np.float32), freqs=np.ones(pairs, np.float32), channels=channels)


def rows_of_bias(node: Node) -> dict[str, Any]:
    """Arguments of the kernel that Python needs no launch of."""
    on = StepTensors(node.layer, node.step(), "cpu")
    return on.arguments(bias_rows_kernel) | node.form.constants(bias_rows_kernel)


def steps() -> dict[str, Node]:
    """Layers of every kind, and steps of every kind."""
    nodes = {name: Node(layer=make_layer(**case), batch=2, new_tokens=3) for name, case in CASES.items()}
    group_of_one = make_layer(heads=3, kv_heads=3)
    kinds = (Kind.FP, Kind.INT8, Kind.FP8, Kind.K4V2)
    nodes |= {f"{kind.value}": Node(layer=make_layer(kind), new_tokens=1) for kind in kinds}
    nodes |= {f"{n} new": Node(layer=make_layer(), new_tokens=n, batch=3) for n in (1, 7, 8, 9, 64, 65, 200)}
    nodes |= {f"MHA {n} new": Node(layer=group_of_one, new_tokens=n) for n in (8, 9, 15, 16, 17)}
    nodes["many pages"] = Node(layer=make_layer(), packed_slots=131, hot_slots=40)
    nodes["many exact pages"] = Node(layer=make_layer(Kind.FP), hot_slots=77, new_tokens=2)
    nodes["key bias"] = Node(layer=make_layer(), bias=bias_of_pairs(3), new_tokens=2)
    nodes["sinks turned"] = Node(layer=make_layer(), rotary_pairs=4, batch=2, new_tokens=5)
    return nodes


def check_step(
    node: Node, calls: list[Call], compiled: dict[str, Compiled], addresses: dict[str, int], workspace: tuple[int, int]
) -> None:
    """The driver was asked what Python asks; `addresses` are tensors', `workspace` begins there with so many bytes."""
    launches, asked = python_launches(node), only(calls, "launch")
    names = [compiled[call["launch"]].name.removesuffix("_decode").removesuffix("_prefill") for call in asked]
    assert names == [name for name in ORDER if name in launches]
    known = addresses | {"packed_halves": addresses.get("packed", 0), "dct": only(calls, "upload")[0]["upload"]}
    _check_regions(_same_launches(asked, names, compiled, launches, known), *workspace)
    (cleared,) = only(calls, "fill")
    assert (cleared["fill"], cleared["value"], cleared["count"]) == (addresses["pages_read"], 0, node.batch)
    assert {call["stream"] for call in (*asked, cleared)} == {0x57}
    assert calls.index(cleared) < calls.index(asked[0])


def _same_launches(
    asked: list[Call], names: list[str], compiled: dict[str, Compiled], launches: Launches, known: dict[str, int]
) -> dict[int, int]:
    """Compares them one by one; bytes that Python gives what lies in the workspace, by address."""
    regions: dict[int, int] = {}
    for call, name in zip(asked, names, strict=True):
        kernel, (grid, arguments) = compiled[call["launch"]], launches[name]
        assert tuple(call["grid"]) == grid, name
        assert call["threads"] == 32 * kernel.warps and call["shared"] == kernel.shared
        assert call["scratch"] == [0, 0]
        assert {n: v for n, v in arguments.items() if n in kernel.constants} == kernel.constants
        for argument, got in zip(kernel.arguments, call["parameters"], strict=True):
            want = arguments[argument]
            if isinstance(want, int | float):
                assert got == pytest.approx(want, rel=1e-7), (name, argument)
            elif argument in known or want is None:
                assert got == known.get(argument, 0), (name, argument)
            else:
                assert regions.setdefault(got, want.nbytes) == want.nbytes, (name, argument)
    return regions


def _check_regions(regions: dict[int, int], first: int, size: int) -> None:
    """Within the workspace, aligned, and apart from each other."""
    starts = sorted(regions)
    ends = [*starts[1:], first + size]
    assert starts[0] == first and all((start - first) % 256 == 0 for start in starts)
    assert all(start + regions[start] <= end for start, end in zip(starts, ends, strict=True))
