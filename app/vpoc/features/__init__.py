"""Features and targets, one row per session or per bar."""
