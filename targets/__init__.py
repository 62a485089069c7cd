"""What is true everywhere: the cache spec, packing arithmetic, graph names, devices."""
