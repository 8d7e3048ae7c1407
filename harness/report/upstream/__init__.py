"""A failed run as a bug report for ROCm or PyTorch."""
