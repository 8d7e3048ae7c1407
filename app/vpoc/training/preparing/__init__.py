"""The first half of a run, before training: devices, data and features."""
