"""A whole model's plain graph on ONNX Runtime, fed like the graph that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from kvedge.export.plain.graph import StepSize, make_plain
from kvedge.plugins.feeds import Row, build_feeds
from kvedge.targets import names
from kvedge.targets.manifest import GRAPH
from kvedge.targets.spec import CacheSpec

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class PlainTrial:
    """An artifact's graph in standard operators, with pools as the runtime allocates them for one session."""

    def __init__(self, folder: Path, cache: CacheSpec, size: StepSize) -> None:
        model = ir.load(folder / GRAPH)
        make_plain(model, cache, size)
        assert {node.domain for node in model.graph} == {""}
        options = ort.SessionOptions()
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(folder))
        self._session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
        self._cache, self._size = cache, size
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._profiles = [size.profile(cache, group) for group in range(len(cache.groups))]
        self.pools = self._empty_pools()
        self.num_tokens = self.packed_pages_read = 0

    def step(self, ids: Sequence[int]) -> np.ndarray:
        """Feed up to N tokens; logits [vocab] of the last one."""
        row = Row(
            ids=[*ids, *[0] * (self._size.new - len(ids))],
            context=self.num_tokens,
            hot=[range(profile.hot_slots) for profile in self._profiles],
            packed=[range(profile.packed_slots) for profile in self._profiles],
        )
        feeds = build_feeds(self._cache, [row], [len(ids) - 1])
        feeds[names.NUM_NEW][:] = len(ids)
        out = dict(zip(self._outputs, self._session.run(None, feeds | self.pools), strict=True))
        for name in self.pools:
            kind, layer = name.split(".")
            self.pools[name] = out[f"{kind}_out.{layer}"]
        self.packed_pages_read += sum(int(out[names.pages_read(layer.index)][0]) for layer in self._cache.layers)
        self.num_tokens += len(ids)
        return np.asarray(out[names.LOGITS][0, 0])

    def _empty_pools(self) -> dict[str, np.ndarray]:
        pools = {}
        for layer in self._cache.layers:
            profile = self._profiles[self._cache.group_of(layer)]
            shape, dtype = layer.hot_shape(profile.hot_pages), layer.kind.hot_dtype.value
            pools[names.hot(layer.index)] = np.zeros(shape, dtype)
            if layer.rules.packs:
                pools[names.packed(layer.index)] = np.zeros(layer.packed_shape(profile.packed_pages), np.int32)
        return pools
