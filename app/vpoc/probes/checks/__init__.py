"""What the checks do: each check takes its `Site` and returns one line on what it saw, or raises."""
