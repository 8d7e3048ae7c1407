"""Short checks of a stack and its devices, each in a process of its own.

Importing this package imports no torch; only the processes of the checks do.
"""
