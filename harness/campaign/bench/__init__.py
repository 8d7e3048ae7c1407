"""The bench that runs are made on: this host or a scheduler, its GPUs, and the runs that are planned for it."""
