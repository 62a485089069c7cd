"""Attention over paged, packed caches in Triton: the kernels for NVIDIA GPUs.

The same source runs in Triton's interpreter on the CPU (TRITON_INTERPRET=1), is compiled ahead of time for a chip that
is not there (python -m kvedge.plugins.cuda.compile), and travels to a device that has no Triton.
"""
