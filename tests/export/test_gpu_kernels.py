"""Bundles of an artifact's kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from streams import make_layer, make_rope

pytest.importorskip("triton", reason="Triton is not installed: no kernels were compiled (pip install triton)")

from safetensors.numpy import load
from stand_in_driver import kernels_of

from kvedge.export.gpu import kernels
from kvedge.plugins.cuda.compile import Compiled
from kvedge.plugins.cuda.variants import LayerForm
from kvedge.targets.kinds import Kind
from kvedge.targets.spec import CacheSpec, LayerSpec


def cache() -> CacheSpec:
    """Four layers of two forms: the second has a softcap."""
    layer, capped = make_layer(Kind.FP), make_layer(Kind.FP, softcap=2.0)
    layers = (layer, capped, layer, capped)
    return CacheSpec(
        max_positions=128,
        layers=tuple(replace(layer, index=index) for index, layer in enumerate(layers)),
        ropes=(make_rope(layer.head_dim),),
    )


def test_each_form_and_chip_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without machine code: a stand-in of the compiler."""
    asked: list[tuple[int, float, int]] = []
    shown: list[str] = []

    def stand_in_compiler(layer: LayerSpec, sm: int, **form: Any) -> list[Compiled]:
        asked.append((sm, layer.softcap, form["rotary_pairs"]))
        return list(kernels_of(LayerForm(layer=layer, **form)))

    @contextmanager
    def progress(name: str) -> Iterator[None]:
        shown.append(name)
        yield

    monkeypatch.setattr(kernels, "compile_layer", stand_in_compiler)
    files = kernels.compile_kernels(cache(), {}, (87, 120), progress)
    assert asked == [(87, 0.0, 8), (120, 0.0, 8), (87, 2.0, 8), (120, 2.0, 8)]
    assert shown == list(files) == [f"kernels.{form}.sm{sm}.safetensors" for form in (0, 1) for sm in (87, 120)]
    assert {name.split(".")[1]: _softcap(content) for name, content in files.items()} == {"0": 0.0, "1": 2.0}
    assert {"attend_decode", "merge", "append", "dct"} <= set(load(files["kernels.0.sm87.safetensors"]))


def _softcap(bundle: bytes) -> float:
    head = json.loads(bundle[8 : 8 + int.from_bytes(bundle[:8], "little")])
    return float(json.loads(head["__metadata__"]["attend_decode"])["constants"]["SOFTCAP"])


PROGRAM = """
from contextlib import nullcontext
from test_gpu_kernels import cache
from kvedge.export.gpu.kernels import compile_kernels
files = compile_kernels(cache(), {}, (87,), nullcontext)
print({name: b"\\x7fELF" in content for name, content in files.items()})
"""


@pytest.mark.slow
def test_bundles_hold_machine_code() -> None:
    """In a process of its own, as this one has Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == str({f"kernels.{form}.sm87.safetensors": True for form in (0, 1)})
