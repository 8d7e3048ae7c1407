"""matrix.yaml as typed cells: stacks, presets, workloads; which wheels exist."""
