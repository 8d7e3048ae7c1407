"""The app's code on a GPU, row by row: what holds, what differs from the CPU's answers, and how fast it is.

`python -m benchmarks.gpu_evidence` needs a Python with torch 2.5 or newer and numpy, nothing else: no network, no root,
no polars. The samples it trains on are prepared before (`benchmarks/gpu_evidence/prepare.py`) and carried in one file.
Every row runs in a process of its own, with a time limit. It says something about code on a GPU, never about a cell.
"""
