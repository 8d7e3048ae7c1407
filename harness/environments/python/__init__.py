"""Python packages, pinned, fetched and installed, on a host or for an image."""
