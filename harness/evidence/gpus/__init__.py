"""The GPUs of runs: their health, their sensors, and the evidence about code on a GPU."""
