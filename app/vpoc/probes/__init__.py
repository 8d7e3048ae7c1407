"""Short checks of a stack and its devices, each in a separate process.

Importing this package does not import torch; only the processes of the checks do.
"""
