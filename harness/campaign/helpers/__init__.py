"""Processes that do a part of a campaign: a stack made, or a run watched, while others go on."""
