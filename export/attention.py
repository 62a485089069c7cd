"""Attention layers of a Hugging Face model, seen through transformers' attention interface.

Two attention functions are registered. `kvedge` emits one node per layer while the model is traced:

    kvedge::PagedAttention(q [B, Q, N, D], k [B, H, N, D], v [B, H, N, D]) -> [B, N, Q, D]

with the attributes layer, scale, softcap and window; q and k come after RoPE and norms, k and v before they
are repeated for the query heads. `kvedge_probe` runs the model once on a few equal tokens, lets every token
attend to itself only, and keeps what it was handed. So what is position-dependent shows in q and k alone, and
facts (rotary embedding, native window) come from an experiment rather than from reading configs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvedge.export.families import NO_EXPORT_YET
from kvedge.plugins import schema
from kvedge.targets.errors import KvedgeError, require

TRACING = "kvedge"
PROBING = "kvedge_probe"

PROBE_TOKENS = 9
_FAR_QUERY = 1 << 20  # far enough that every native window has an end before it
_WINDOW_UNCLEAR = -1

# What modelling code passes that the op expresses, or that has no bearing on a causal text model: the mask is
# probed, dropout is off, positions are in q and k already.
_HARMLESS = frozenset(
    (
        *("scaling", "softcap", "dropout", "sliding_window", "is_causal", "position_ids", "cache_position"),
        *("cache", "use_cache", "return_dict", "logits_to_keep", "num_items_in_batch"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
    )
)


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """What one attention layer was handed in the probe.

    Args:
        q: [2, Q, PROBE_TOKENS, D]; k: [2, H, PROBE_TOKENS, D].
        window: keys that a query sees, itself included; 0 for all before it.
    """

    q: Tensor
    k: Tensor
    window: int


@dataclass(frozen=True)
class Probe:
    """Calls of all attention layers by layer number, and the logits [2, PROBE_TOKENS, vocab] behind them."""

    calls: dict[int, LayerCall]
    logits: Tensor


@dataclass
class _Recorder:
    """The attention function of the probe: every token attends to itself."""

    calls: dict[int, LayerCall] = field(default_factory=dict)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        layer = _check_call(module, query, key, value, kwargs)
        require(layer not in self.calls, f"attention layer {layer}", expected="one call", got="two")
        self.calls[layer] = LayerCall(q=query.detach(), k=key.detach(), window=_read_window(layer, attention_mask))
        group = query.shape[1] // key.shape[1]
        return value.repeat_interleave(group, dim=1).transpose(1, 2), None


def probe_attention(model: PreTrainedModel) -> Probe:
    """Run `model` on two rows that end in the same token: one of equal tokens, one of various ones.

    Raises:
        KvedgeError: attention outside the interface, or of a form that kvedge does not know.
    """
    vocab = model.config.get_text_config().vocab_size
    same = torch.full((PROBE_TOKENS,), vocab // 3)
    various = (torch.arange(PROBE_TOKENS) * 7 + 3) % vocab
    various[-1] = same[-1]
    recorder = _Recorder()
    with _registered_probe(recorder), using_attention(model, PROBING), torch.no_grad():
        logits = model(input_ids=torch.stack((same, various)), use_cache=False).logits
    require(
        bool(recorder.calls),
        f"{type(model).__name__} has attention of its own",
        expected="attention through transformers' attention interface",
        fix=NO_EXPORT_YET,
    )
    return Probe(recorder.calls, logits)


def register() -> None:
    """Make the names `kvedge` and `kvedge_probe` known to transformers; calling it again changes nothing."""
    ALL_ATTENTION_FUNCTIONS.register(TRACING, _emit_node)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TRACING, _no_mask)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PROBING, _window_of_mask)


@contextmanager
def using_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Switch every configuration in `model` to the attention function `name`, and back."""
    register()
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    try:
        for config in configs.values():
            config._attn_implementation = name
        yield
    finally:
        for config, old in before:
            config._attn_implementation = old


@contextmanager
def _registered_probe(recorder: _Recorder) -> Iterator[None]:
    functions: Any = ALL_ATTENTION_FUNCTIONS
    functions[PROBING] = recorder
    try:
        yield
    finally:
        del functions[PROBING]


def _emit_node(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Emit the node of one layer. The window is stamped after the trace, from the probe."""
    layer = _check_call(module, query, key, value, kwargs)
    require(attention_mask is None, f"attention layer {layer} makes a mask of its own", fix="no export for it yet")
    batch, heads, tokens, head_dim = query.shape
    scale = head_dim**-0.5 if scaling is None else float(scaling)
    output = torch.onnx.ops.symbolic(
        f"{schema.DOMAIN}::{schema.NAME}",
        (query, key, value),
        {"layer": layer, "scale": scale, "softcap": float(softcap or 0.0), "window": 0},
        dtype=query.dtype,
        shape=(batch, tokens, heads, head_dim),
        version=1,
    )
    return output, None


def _check_call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, object]) -> int:
    """Return the layer number, or raise for what the op cannot express."""
    layer: Any = getattr(module, "layer_idx", None)
    require(
        isinstance(layer, int),
        f"{type(module).__name__} has no layer number",
        expected="an integer layer_idx",
    )
    where = f"attention layer {layer}"
    require(
        kwargs.get("s_aux") is None and kwargs.get("sinks") is None,
        f"{where} has learned sinks",
        fix=NO_EXPORT_YET,
    )
    require(kwargs.get("is_causal") is not False, f"{where} is not causal", fix="only causal models can stream")
    extra = sorted(name for name, given in kwargs.items() if given is not None and name not in _HARMLESS)
    require(
        not extra,
        f"{where} uses {', '.join(extra)}",
        expected="plain scaled dot products",
        fix=NO_EXPORT_YET,
    )
    require(
        key.shape == value.shape and query.shape[-1] == key.shape[-1] and query.shape[2] == key.shape[2],
        f"{where} has keys and values of different shapes",
        expected="q, k and v with one head_dim and one length (no latent or cross attention)",
        got=f"q {list(query.shape)}, k {list(key.shape)}, v {list(value.shape)}",
        fix=NO_EXPORT_YET,
    )
    return int(layer)


def _no_mask(**_: object) -> None:
    """Replace mask creation while tracing: the op masks by positions."""


def _window_of_mask(mask_function: Callable[..., Tensor], **_: object) -> Tensor:
    """Measure a mask at two far queries; int64 [1, 1, 1, 1]: its window, 0 for none, -1 if it is neither."""
    windows = {_window_at(mask_function, query) for query in (_FAR_QUERY, _FAR_QUERY + 12345)}
    return torch.full((1, 1, 1, 1), windows.pop() if len(windows) == 1 else _WINDOW_UNCLEAR)


def _window_at(mask_function: Callable[..., Tensor], query: int) -> int:
    keys = torch.arange(query + 2)
    row = torch.tensor(0)
    try:
        seen = mask_function(row, row, torch.full_like(keys, query), keys).expand(query + 2)
    except (IndexError, RuntimeError):  # it looks at more than the two positions
        return _WINDOW_UNCLEAR
    count = int(seen.sum())
    if not torch.equal(seen, (keys <= query) & (keys > query - count)):
        return _WINDOW_UNCLEAR
    return 0 if count == query + 1 else count


def _read_window(layer: int, mask: Tensor | None) -> int:
    ours = mask is not None and mask.dtype == torch.int64 and mask.numel() == 1
    window = int(mask) if mask is not None and ours else _WINDOW_UNCLEAR
    if window == _WINDOW_UNCLEAR:
        raise KvedgeError(
            f"attention layer {layer} masks in a way that kvedge does not know",
            expected="a causal mask, with or without a sliding window",
            got="an attention bias (alibi), chunks, or both directions",
            fix=NO_EXPORT_YET,
        )
    return window
