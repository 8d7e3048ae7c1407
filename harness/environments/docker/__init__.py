"""Docker images: their recipe, building, rebuilding, and their content."""
