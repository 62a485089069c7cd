"""What kvedge asks of TensorRT's Python packages is in the true ones.

`tensorrt_bindings` (PyPI: tensorrt-cu12-bindings) is the true Python half of TensorRT. In the place of its C++ half,
which takes gigabytes and a GPU's driver, is a library of empty functions: nothing runs, but names are the true ones.
TensorRT for RTX is there as a whole.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from stand_in_driver import compiler

import kvedge.export.build.builder
import kvedge.export.build.progress
import kvedge.plugins.engine_package
import kvedge.runtime.kernel_cache
import kvedge.runtime.tensorrt_part

OBJECTS = {
    kvedge.runtime.tensorrt_part: {
        "package": "",
        "library.package": "",
        "library.runtime": "Runtime",
        "self._engine": "ICudaEngine",
        "context": "IExecutionContext",
        "self._contexts[key]": "IExecutionContext",
        "config": "IRuntimeConfig",
        "when": "DynamicShapesKernelSpecializationStrategy",
    },
    kvedge.runtime.kernel_cache: {"config": "IRuntimeConfig", "self._cache": "IRuntimeCache"},
    kvedge.export.build.builder: {
        "trt": "",
        "builder": "Builder",
        "network": "INetworkDefinition",
        "config": "IBuilderConfig",
        "parser": "OnnxParser",
        "error": "ParserError",
        "made": "IOptimizationProfile",
        "given": "ITensor",
    },
    kvedge.export.build.progress: {"trt": ""},
    kvedge.plugins.engine_package: {"package": "", "registry": "IPluginRegistry"},
}
"""Variables and what they hold, by module."""

OF_RTX = {
    "DynamicShapesKernelSpecializationStrategy.EAGER",
    "DynamicShapesKernelSpecializationStrategy.LAZY",
    "IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy",
    "IRuntimeConfig.create_runtime_cache",
    "IRuntimeConfig.set_runtime_cache",
    "IRuntimeCache.serialize",
    "IRuntimeCache.deserialize",
    "ComputeCapability",
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
    "BuilderFlag.REQUIRE_USER_ALLOCATION",
}
"""What only the code for TensorRT for RTX asks for."""
SINCE_10_11 = {"ICudaEngine.create_runtime_config", "IRuntimeConfig.set_execution_context_allocation_strategy"}
"""TensorRT has them, JetPack 6's does not; the code for RTX alone asks for them."""
PYTHON_S = {"__name__", "__version__"}

FUNCTIONS = """
    createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL createNvOnnxParser_INTERNAL
    createNvOnnxParserRefitter_INTERNAL getBuilderPluginRegistry getNvOnnxParserVersion getPluginRegistry
    initLibNvInferPlugins
"""
"""Of the C++ half, as 10.3 and 11.1 of the Python half name them."""

LOOK = """
import importlib, json, os, sys
sys.setdlopenflags(os.RTLD_LAZY)
package = importlib.import_module(sys.argv[1])
def there(at, names):
    return not names or hasattr(at, names[0]) and there(getattr(at, names[0]), names[1:])
print(json.dumps([name for name in sys.argv[2:] if not there(package, name.split("."))]))
"""


def asked(module: object, objects: dict[str, str]) -> Iterator[str]:
    """Dotted names that a module's source asks of the library's objects."""
    source = Path(str(getattr(module, "__file__"))).read_text()  # noqa: B009
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner, _, rest = ast.unparse(node).rpartition(".")
            for variable, kind in objects.items():
                if owner == variable:
                    yield f"{kind}.{rest}".lstrip(".")
                elif owner.startswith(f"{variable}.") and not kind:
                    yield f"{owner.removeprefix(f'{variable}.')}.{rest}"


ASKED = sorted({name for module, objects in OBJECTS.items() for name in asked(module, objects)} - PYTHON_S)


def missing(package: str, folder: Path) -> set[str]:
    """Names that a package does not have; its version's number from 10 up ends the C++ half's file names."""
    folders = str(folder) + os.pathsep + os.environ.get("LD_LIBRARY_PATH", "")
    command = [sys.executable, "-c", LOOK, package, *ASKED]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": folders})
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a C++ half of TensorRT 10 and 11 that does nothing."""
    folder = tmp_path_factory.mktemp("tensorrt")
    functions = (f'extern "C" void* {name}() {{ return nullptr; }}\n' for name in FUNCTIONS.split())
    (folder / "empty.cc").write_text("".join(functions))
    for version in (10, 11):
        for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
            file = f"lib{name}.so.{version}"
            options = ["-shared", "-fPIC", f"-Wl,-soname,{file}", "-o", folder / file]
            subprocess.run([compiler(), folder / "empty.cc", *options], check=True)
    return folder


def test_the_sources_are_read() -> None:
    """Of each module something is found, and no fewer names than there are now."""
    assert {"Builder.create_network", "IExecutionContext.execute_async_v3", "TensorIOMode.INPUT"} < set(ASKED)
    assert {"IProgressMonitor", "ILogger.INTERNAL_ERROR", *OF_RTX, *SINCE_10_11} < set(ASKED)
    assert len(ASKED) > 50


def test_tensorrt_has_what_it_is_asked_for(empty_library: Path) -> None:
    if find_spec("tensorrt_bindings") is None:
        pytest.skip("tensorrt_bindings is not installed: nothing was compared (pip install tensorrt-cu12-bindings)")
    assert missing("tensorrt_bindings", empty_library) - SINCE_10_11 == OF_RTX


def test_tensorrt_for_rtx_has_what_it_is_asked_for(empty_library: Path) -> None:
    if find_spec("tensorrt_rtx") is None:
        pytest.skip("tensorrt_rtx is not installed: nothing was compared (pip install tensorrt-rtx)")
    assert not missing("tensorrt_rtx", empty_library)
