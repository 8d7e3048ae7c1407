"""How devices are used: thin wrappers around the same model and loop."""
