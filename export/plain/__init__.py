"""The attention op as standard ONNX operators, for engines that take no plugins (TensorRT for RTX).

Inputs and outputs are those of `kvedge.plugins.schema`, the bytes in the pools are the same. What differs: one
sequence (B = 1), fixed numbers of pages, and pools that are not written in place, since ScatterND makes a new tensor:
the target `rtx` counts two of each. The number of new tokens is open, 1 up to a chunk, and so is how many of them get
logits: one graph and one engine serve prefill and decode, each by its profile (`kvedge.targets.profiles`), with the
weights in memory once. Only operators, types and forms that the parser of TensorRT for RTX takes are used: no bit
operations, no unsigned types, no loops.
"""
