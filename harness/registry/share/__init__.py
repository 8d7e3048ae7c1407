"""Records of several hosts put together: `matrix export` and `matrix import`."""
