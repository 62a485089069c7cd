"""Tracing a model takes seconds and does not depend on the cache: do it once for many exports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvedge.export import export as exporter
from kvedge.export.source import LoadedModel
from kvedge.export.trace import TracedModel

_TRACED: dict[str, TracedModel] = {}


def share_traces(patch: pytest.MonkeyPatch) -> list[str]:
    """Trace models of the same name only once; the names of those that an export asked for."""
    asked: list[str] = []
    trace = exporter.trace

    def once(loaded: LoadedModel, **options: int) -> TracedModel:
        asked.append(loaded.name)
        if loaded.name not in _TRACED:
            _TRACED[loaded.name] = trace(loaded, **options)
        found = _TRACED[loaded.name]
        return replace(found, model=found.model.clone())  # an export may change how its weights are stored

    patch.setattr(exporter, "trace", once)
    return asked
