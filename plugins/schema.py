"""The operators, described once: export emits them, the C++ library implements them, tests compare both.

BlockLinear: inputs x float32 [..., inputs], weights uint8 as kvedge.targets.block_weights lays them out, then, each of
them maybe absent, gamma float32 [inputs], skip float32 [..., inputs] and bias float32 [outputs]; outputs
y float32 [..., outputs] and maybe sum float32 [..., inputs]. With gamma, sum = x + skip (x alone without skip), and
what meets the weights is its RMS norm, gamma * sum / sqrt(mean(sum^2) + epsilon); without, it is x.
BlockGated: the same without a bias; y = activation(x . gate) * (x . up), where weights hold the tiles of gate, then
those of up. BlockEmbedding: rows float32 [..., inputs] of ids int64 [...] and weights. All have the attributes bits and
outputs (of one matrix), the products also epsilon (0 without gamma), BlockGated also activation.

PagedAttention: inputs, in order ([B] sequences, [N] new tokens, [Q] query heads, [H] kv heads, [D] head_dim, [T] page):

    q             float32 [B, N, Q * D], or [B, N, (Q + 2H) * D] with keys and values behind the queries
    k             float32 [B, N, H * D]    absent where q holds all
    v             float32 [B, N, H * D]    absent where q holds all
    cos           float32 [B, N, pairs]    rotary embedding of q and k, absent where they need none (any more)
    sin           float32 [B, N, pairs]
    hot           float32|float16 [pages, 2, H, T, D]
    packed        int32 [pages, words]     absent where nothing is packed
    hot_table     int32 [B, slots]
    packed_table  int32 [B, slots]         absent where nothing is packed
    context       int32 [B]
    num_new       int32 [B]
    sink_cos      float32 [B, N, pairs]    absent where sinks are read with the query as it is
    sink_sin      float32 [B, N, pairs]
    bias_page     float32 [H, 2F, T]       a key bias kept out of the codes (kvedge.plugins.key_bias), or absent
    bias_freqs    float32 [F]
    bias_channels int32 [2F]

PagedAttention: outputs: out float32 [B, N, Q * D]; hot and packed, normally the input buffers; pages_read int32 [B].
"""

from __future__ import annotations

from kvedge.targets.kinds import ValueScale
from kvedge.targets.spec import LayerSpec

DOMAIN = "kvedge"
VERSION = 1
NAME = "PagedAttention"
LINEAR = "BlockLinear"
EMBEDDING = "BlockEmbedding"
GATED = "BlockGated"
SILU, GELU_TANH = "silu", "gelu_tanh"
ACTIVATIONS = (SILU, GELU_TANH)
GAMMA, SKIP, BIAS = 2, 3, 4
"""Inputs of the products with weights in blocks that may be absent."""

GIVEN, FORM, KERNELS = "inputs", "form", "kernels"
"""Attributes of a node for GPUs, besides those of `attributes`: names of its inputs apart by commas, the number of the
kernels that it needs (kvedge.plugins.cuda.forms), and, for TensorRT's plugin, the bytes of these kernels."""

INPUTS = (
    "q",
    "k",
    "v",
    "cos",
    "sin",
    "hot",
    "packed",
    "hot_table",
    "packed_table",
    "context",
    "num_new",
    "sink_cos",
    "sink_sin",
    "bias_page",
    "bias_freqs",
    "bias_channels",
)
OUTPUTS = ("out", "hot_out", "packed_out", "pages_read")


def attributes(layer: LayerSpec, *, interleaved: bool) -> dict[str, int | float]:
    """Attributes of one layer's node. `interleaved` is its rotary pairing."""
    return {
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "page": layer.rules.page,
        "sinks": layer.rules.sinks,
        "recent": layer.rules.recent,
        "window": layer.rules.window or 0,
        "k_bits": layer.kind.k_bits,
        "v_bits": layer.kind.v_bits,
        "float_codes": int(layer.kind.has_floats),
        "v_unbiased": int(layer.kind.value_scale is ValueScale.UNBIASED),
        "rotary_interleaved": int(interleaved),
        "scale": float(layer.scale),
        "softcap": float(layer.softcap),
    }
