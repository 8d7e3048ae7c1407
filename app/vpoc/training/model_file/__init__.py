"""The model file, and its answers on new data."""
