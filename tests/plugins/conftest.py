"""Kernels of every instruction set that this CPU has."""

from __future__ import annotations

import pytest
from instruction_sets import NEEDS, copied, cpu_flags

from kvedge.plugins.native import NativeKernels, load


@pytest.fixture(scope="module", params=NEEDS)
def forced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    """Kernels told to use one instruction set."""
    if missing := NEEDS[request.param] - cpu_flags():
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}: {request.param} was not run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVEDGE_CPU_ISA", request.param)
        kernels = load(copied(tmp_path_factory.mktemp(request.param)))
        assert kernels.cpu_isa == request.param
    return kernels
