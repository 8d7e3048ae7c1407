"""Docker images: their recipe, building, rebuilding, and what is in them."""
