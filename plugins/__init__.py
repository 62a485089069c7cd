"""The attention kernels: a numpy reference, C++ for CPUs, and GPU plugins."""
