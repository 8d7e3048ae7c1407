"""Training by JAX in place of torch, in separate stacks."""
