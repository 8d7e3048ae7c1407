"""The commands, grouped by subject; each imports what it needs only when it runs."""
