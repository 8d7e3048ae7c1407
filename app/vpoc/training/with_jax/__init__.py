"""Training by JAX, in stacks of its own, in place of torch."""
