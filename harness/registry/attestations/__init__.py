"""Signed statements about images: their contents, the inputs that they were made from, and what their runs showed."""
