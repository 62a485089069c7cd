"""An artifact's graph in standard ONNX operators, as parsers of other engines than ONNX Runtime's CPU one know them.

What the flavours for GPUs share (kvedge.export.gpu with a plugin's node for attention, kvedge.export.plain with
attention in standard operators, too): formulas over a graph's tensors, and forms of products, lookups and norms.
"""
