"""Fusions for ONNX Runtime: fewer nodes, and weights in the form in which its kernels take them.

All rules are onnxscript's. A linear layer's transposed weight becomes an attribute of the product, which spares
ONNX Runtime transposing (and keeping) every weight when it loads; RMS norms become one node, together with the
residual sum in front of them.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter.ort_fusions.fused_matmul_rule_sets import fused_matmul_rule_sets
from onnxscript.rewriter.ort_fusions.rms_normalization import fuse_rms_normalization
from onnxscript.rewriter.ort_fusions.skip_normalization import fuse_skip_rms_normalization


def fuse_for_ort(model: ir.Model) -> None:
    """Apply them all, in place; what no rule knows stays as it is."""
    fused_matmul_rule_sets().apply_to_model(model)
    fuse_rms_normalization(model)
    fuse_skip_rms_normalization(model)
    RemoveUnusedNodesPass()(model)
