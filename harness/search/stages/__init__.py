"""The next run of a campaign in stages, and its conclusion. Pure."""
