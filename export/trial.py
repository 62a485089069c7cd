"""Run a stamped graph step by step, as plain as can be: one sequence, every page in its own place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from kvedge.plugins import library
from kvedge.plugins.feeds import Row, build_feeds
from kvedge.targets import names
from kvedge.targets.spec import CacheSpec

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class Trial:
    """A graph with pools for `context` tokens, fed any number at a time; pools travel as ordinary inputs and outputs.

    Args:
        graph: the graph, its weights in files.
        weights: folder of those files.
        cache: what the graph was stamped with.
        context: most tokens of a text.
        fed: weights that are inputs of the graph, by name.
    """

    def __init__(
        self,
        graph: ir.Model,
        weights: Path,
        cache: CacheSpec,
        *,
        context: int,
        fed: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False  # a few steps: memory counts, not the time to get it
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights))
        library.register(options)
        content = ir.to_proto(graph).SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._cache, self._capacities = cache, [rules.capacity(context, context) for rules in cache.groups]
        self._fed = dict(fed)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.restart()

    def restart(self) -> None:
        """Begin a new text."""
        self._pools = self._empty_pools()
        self.num_tokens = self.packed_pages_read = 0

    def step(self, ids: Sequence[int], rows: Sequence[int]) -> NDArray[np.float32]:
        """Feed tokens; logits [len(rows), vocab] of some of them, maybe none."""
        row = Row(
            ids=ids,
            context=self.num_tokens,
            hot=[range(capacity.hot_pages) for capacity in self._capacities],
            packed=[range(capacity.packed_pages) for capacity in self._capacities],
        )
        feeds = build_feeds(self._cache, [row], rows or [0])
        out = dict(zip(self._outputs, self._session.run(None, feeds | self._pools | self._fed), strict=True))
        for layer in self._cache.layers:
            self._pools[names.hot(layer.index)] = out[names.hot_out(layer.index)]
            if layer.rules.packs:
                self._pools[names.packed(layer.index)] = out[names.packed_out(layer.index)]
            self.packed_pages_read += int(out[names.pages_read(layer.index)].sum())
        self.num_tokens += len(ids)
        return np.asarray(out[names.LOGITS][0][: len(rows)])

    def _empty_pools(self) -> dict[str, NDArray[np.float32]]:
        pools = {}
        for layer in self._cache.layers:
            capacity = self._capacities[self._cache.group_of(layer)]
            pools[names.hot(layer.index)] = np.zeros(layer.hot_shape(capacity.hot_pages), layer.kind.hot_dtype.value)
            if layer.rules.packs:
                pools[names.packed(layer.index)] = np.zeros(layer.packed_shape(capacity.packed_pages), np.int32)
        return pools
