"""Bars: reading, checking, merging and making them; trading sessions."""
