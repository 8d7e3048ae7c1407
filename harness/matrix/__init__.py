"""matrix.yaml as typed cells: stacks, presets and workloads, and which wheels exist."""
