"""From an artifact to an engine of TensorRT or TensorRT for RTX, on the device or for a named chip.

Nothing here needs torch: it runs on a board that has kvedge, numpy, onnx and TensorRT.
"""
