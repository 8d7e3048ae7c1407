"""One run: spec -> start -> watch -> verify -> outcome -> checks of the GPUs -> record."""
