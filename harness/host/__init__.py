"""The machine the harness runs on."""
