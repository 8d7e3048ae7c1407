"""Bars: reading, checking, merging and generating them; trading sessions."""
