"""A whole model's plain graph on ONNX Runtime, fed like the graph that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from kvedge.export.plain.graph import graph_size, make_plain
from kvedge.plugins.feeds import Row, build_feeds
from kvedge.targets import names
from kvedge.targets.manifest import GRAPH
from kvedge.targets.profiles import StepLimits
from kvedge.targets.spec import CacheSpec

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class PlainTrial:
    """An artifact's graph in standard operators, with pools as the runtime allocates them for one session."""

    def __init__(self, folder: Path, cache: CacheSpec, limits: StepLimits) -> None:
        model = ir.load(folder / GRAPH)
        make_plain(model, cache, limits)
        assert {node.domain for node in model.graph} == {""}
        options = ort.SessionOptions()
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(folder))
        self._session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
        self._cache = cache
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._sizes = [graph_size(cache, limits, group) for group in range(len(cache.groups))]
        self.pools = self._empty_pools()
        self.num_tokens = self.packed_pages_read = 0

    def step(self, ids: Sequence[int], rows: Sequence[int]) -> np.ndarray:
        """Feed tokens; logits [rows, vocab] of some of them."""
        row = Row(
            ids=ids,
            context=self.num_tokens,
            hot=[range(size.hot_slots) for size in self._sizes],
            packed=[range(size.packed_slots) for size in self._sizes],
        )
        feeds = build_feeds(self._cache, [row], rows)
        out = dict(zip(self._outputs, self._session.run(None, feeds | self.pools), strict=True))
        for name in self.pools:
            kind, layer = name.split(".")
            self.pools[name] = out[f"{kind}_out.{layer}"]
        self.packed_pages_read += sum(int(out[names.pages_read(layer.index)][0]) for layer in self._cache.layers)
        self.num_tokens += len(ids)
        return np.asarray(out[names.LOGITS][0])

    def _empty_pools(self) -> dict[str, np.ndarray]:
        pools = {}
        for layer in self._cache.layers:
            size = self._sizes[self._cache.group_of(layer)]
            shape, dtype = layer.hot_shape(size.hot_pages), layer.kind.hot_dtype.value
            pools[names.hot(layer.index)] = np.zeros(shape, dtype)
            if layer.rules.packs:
                pools[names.packed(layer.index)] = np.zeros(layer.packed_shape(size.packed_pages), np.int32)
        return pools
