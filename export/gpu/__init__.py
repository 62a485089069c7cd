"""An artifact's graph for GPUs: TensorRT with the plugin of plugins/tensorrt, and ONNX Runtime's CUDA provider.

One graph for both. Attention is one node a layer, `kvedge::PagedAttention` in the plugin's form
(kvedge.export.gpu.node); all else is standard operators (kvedge.export.standard.operators), strongly typed, with the
numbers of sequences and of new tokens left open. Products are made in float16. What lies between them stays float32:
the kernels take queries, keys and values so, the residual stream of trained models grows beyond what float16 resolves
(of some beyond what it holds), and its squares, of which norms are made, overflow from 256 on. None of that reads
weights, and engines fuse it. Inputs and results of a product do pass through float16: a model that exceeds 65504 there
becomes infinite.
"""
