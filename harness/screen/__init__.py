"""Terminal output: tables, the live view, colours."""
