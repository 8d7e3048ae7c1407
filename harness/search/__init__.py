"""The next run of a search: one known-good cell in few runs, every cell settled, cells compared, presets minimised."""
