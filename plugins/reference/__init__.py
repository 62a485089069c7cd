"""Plain numpy versions of the kernels: they decide who is right."""
