"""Statements about images that are signed: what they hold, what they were made from, what their runs showed."""
