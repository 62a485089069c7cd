"""How large a model's weights are: in the artifact, in memory, and what a decode step reads of them."""

from __future__ import annotations

from dataclasses import dataclass

from kvedge.targets import manifest as artifact
from kvedge.targets.manifest import Manifest
from kvedge.targets.settings import WeightType


@dataclass(frozen=True, kw_only=True)
class WeightSizes:
    """Size of a model's weights.

    Args:
        stored_as: how they are stored.
        stored: bytes in the artifact.
        step: those bytes of which a decode step reads all, None where nobody knows.
        basis: what the numbers come from, for people.
    """

    stored_as: WeightType
    stored: int
    step: int | None
    basis: str

    @property
    def loaded(self) -> int:
        """Bytes in memory, as ONNX Runtime on the CPU keeps them."""
        return round(self.stored * self.unpacking)

    @property
    def unpacking(self) -> float:
        """Times as large as stored, in the memory of ONNX Runtime on the CPU."""
        return self.stored_as.loaded_bits / self.stored_as.stored_bits

    @property
    def parameters(self) -> int:
        """Number of weights, from their bytes."""
        return round(8 * self.stored / self.stored_as.stored_bits)


def artifact_weights(manifest: Manifest) -> WeightSizes:
    """Size of an artifact's weights, from its file list."""
    stored = sum(info.bytes for name, info in manifest.files.items() if name in (artifact.GRAPH, artifact.WEIGHTS))
    return WeightSizes(
        stored_as=WeightType(manifest.model.weights),
        stored=stored,
        step=manifest.model.step_bytes,
        basis="the artifact's files",
    )
