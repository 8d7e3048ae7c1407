"""The commands, grouped by subject. Each imports its dependencies only when it runs."""
