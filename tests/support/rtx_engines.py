"""Engines of TensorRT for RTX for graphs that are no artifacts, by the builder of `kvedge build`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvedge.export.build import builder
from kvedge.targets.devices import EngineKind, find_target
from kvedge.targets.profiles import Profile

trt = pytest.importorskip("tensorrt_rtx", reason="engines are not built here: the package tensorrt-rtx is absent")

SMS = find_target("rtx").sms


class Quiet(trt.IProgressMonitor):
    """Tells nobody."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None: ...

    def step_complete(self, phase_name: str, step: int) -> bool:
        return True

    def phase_finish(self, phase_name: str) -> None: ...


def build_engine(graph: Path, sm: int, profiles: dict[str, Profile]) -> bytes:
    """The engine of an .onnx file for one chip."""
    job = builder.EngineJob(
        engine=EngineKind.TENSORRT_RTX,
        sm=sm,
        graph=graph.read_bytes(),
        folder=graph.parent,
        profiles=profiles,
        workspace=None,
        timing_cache=b"",
    )
    return bytes(builder.build_engine(trt, job, Quiet()).engine)
