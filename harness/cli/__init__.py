"""The command line `matrix`: one module for each command, which parses its options and prints its results."""
