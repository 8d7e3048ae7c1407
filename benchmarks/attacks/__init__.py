"""Attacks of a hostile app on the harness, each in its own campaign, and the table of their results."""
