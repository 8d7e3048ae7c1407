"""The next run of a campaign in stages, and the conclusion of the campaign. Pure."""
