"""The first half of a run, before it trains: devices, data and features."""
