"""The machine that the harness runs on."""
