"""The strategies for using devices: thin wrappers around the same model and loop."""
