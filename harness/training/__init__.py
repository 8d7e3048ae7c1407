"""Trains on the user's data to the end, through failures."""
