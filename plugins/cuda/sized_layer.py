"""A layer of given sizes, to compile kernels for, to compare them with the reference, and to time them."""

from __future__ import annotations

from kvedge.targets.kinds import Kind
from kvedge.targets.spec import DEFAULT_RECENT, DEFAULT_SINKS, LayerSpec, PageRules


def make_layer(kind: Kind, heads: int, kv_heads: int, head_dim: int, page: int) -> LayerSpec:
    """A layer of these sizes without a window."""
    rules = PageRules(page=page, sinks=DEFAULT_SINKS, recent=DEFAULT_RECENT, window=None, exact=kind.is_exact)
    return LayerSpec(
        index=0,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kind=kind,
        rules=rules,
        rope=0,
        scale=head_dim**-0.5,
        softcap=0.0,
    )
