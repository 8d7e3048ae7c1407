"""The GPUs that runs had: their health, their sensors, the proof that one was used."""
