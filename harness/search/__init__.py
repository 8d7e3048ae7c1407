"""What to run next: one known-good cell in few runs, or every cell settled."""
