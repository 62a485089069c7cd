"""The artifact's graph as the builder gets it: with the kernels of the chip in the plugin's nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from kvedge.plugins import schema
from kvedge.targets import manifest as artifact
from kvedge.targets import names
from kvedge.targets.devices import TARGETS
from kvedge.targets.errors import require
from kvedge.targets.manifest import Manifest

_FORM, _KERNELS = "form", "kernels"


def graph_with_kernels(folder: Path, manifest: Manifest, sm: int) -> bytes:
    """Bytes of the ONNX file; weights stay where they are.

    Raises:
        KvedgeError: the artifact has no kernels for the chip.
    """
    model = onnx.load(str(folder / artifact.GRAPH), load_external_data=False)
    bundles: dict[int, onnx.TensorProto] = {}
    for node in model.graph.node:
        if node.op_type != schema.NAME:
            continue
        form = next(attribute.i for attribute in node.attribute if attribute.name == _FORM)
        if form not in bundles:
            bundles[form] = _bundle(folder, manifest, form, sm)
        node.attribute.append(onnx.helper.make_attribute(_KERNELS, bundles[form]))
    return bytes(model.SerializeToString())


def _bundle(folder: Path, manifest: Manifest, form: int, sm: int) -> onnx.TensorProto:
    """A file as a tensor of bytes: the parser adds a byte to texts."""
    name = names.kernels(form, sm)
    sms = sorted({sm for target in TARGETS for sm in target.sms if names.kernels(form, sm) in manifest.files})
    fix = "export again with a --target that has this chip"
    require(
        name in manifest.files,
        f"kernels in {folder}",
        expected=f"for SM{sm}",
        got=", ".join(f"SM{each}" for each in sms) or "none",
        fix=fix,
    )
    data = np.frombuffer((folder / name).read_bytes(), np.int8)
    return onnx.numpy_helper.from_array(data, name)
