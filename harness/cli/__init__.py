"""The command `matrix`: parses and prints, one file a command."""
