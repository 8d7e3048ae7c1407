"""The files of a run: their names, their types, and the one way to read what a run left."""
