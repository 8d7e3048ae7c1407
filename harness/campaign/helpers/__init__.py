"""Processes that do a part of a campaign, making a stack or watching a run, while other parts go on."""
