"""Attacks of a hostile app on the harness, each in a campaign of its own, and the table of what came of them."""
