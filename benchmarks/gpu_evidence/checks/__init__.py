"""The functions of the rows: each takes its `Site` and the `Kit`, and returns a `Finding` or raises an error."""
