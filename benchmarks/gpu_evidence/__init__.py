"""The GPU evidence kit: it runs the app's code on a GPU and compares answers with the CPU's, and speeds.

`python -m benchmarks.gpu_evidence` needs only a Python with torch 2.5 or newer and numpy: no network, no root and no
polars. Its samples are prepared in advance (`benchmarks/gpu_evidence/prepare.py`) and carried along in one file. Every
row runs in its own process, with a time limit. A row says something about code on a GPU, and nothing about a cell.
"""
