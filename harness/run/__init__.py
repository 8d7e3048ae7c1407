"""One run: spec -> start -> watch -> verify -> record, and what follows a failure."""
