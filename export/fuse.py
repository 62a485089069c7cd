"""Fusions for ONNX Runtime: fewer nodes, and weights in the form in which its kernels take them.

Attention nodes take over what stands around them, products that read the same become one, and what follows the last
attention sees only the tokens that count; all other rules are onnxscript's. A linear layer's transposed weight
becomes an attribute of the product, which spares ONNX Runtime transposing (and keeping) every weight when it loads; RMS
norms become one node, together with the residual sum in front of them, and then part of the product that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter.ort_fusions.fused_matmul_rule_sets import fused_matmul_rule_sets
from onnxscript.rewriter.ort_fusions.rms_normalization import fuse_rms_normalization
from onnxscript.rewriter.ort_fusions.skip_normalization import fuse_skip_rms_normalization

from kvedge.export.absorb import absorb, norm_by_token
from kvedge.export.block_weights import put_blocks
from kvedge.export.join import join_products
from kvedge.export.last_rows import pick_rows_early
from kvedge.export.take_norms import take_norms
from kvedge.export.trace import TracedModel
from kvedge.plugins.reference.linear import Blocks


def fuse_for_ort(traced: TracedModel, blocks: Mapping[str, Blocks] = MappingProxyType({})) -> None:
    """Apply them all, in place; what no rule knows stays as it is.

    Args:
        blocks: weights that are stored in blocks, by name.
    """
    absorb(traced)
    model = traced.model
    fused_matmul_rule_sets().apply_to_model(model)
    fuse_rms_normalization(model)
    fuse_skip_rms_normalization(model)
    norm_by_token(model)
    RemoveUnusedNodesPass()(model)
    put_blocks(model, blocks)
    join_products(model)
    pick_rows_early(model)
    take_norms(model)
