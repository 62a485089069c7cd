"""The attention op as standard ONNX operators, for engines that take no plugins (TensorRT for RTX).

Inputs and outputs are those of `kvedge.plugins.schema`, the bytes in the pools are the same. What differs: one
sequence (B = 1), a fixed number of new tokens and pages a graph, and pools that are not written in place, since
ScatterND makes a new tensor: the target `rtx` counts two of each. Only operators, types and forms that
the parser of TensorRT for RTX takes are used: no bit operations, no unsigned types, no loops.
"""
