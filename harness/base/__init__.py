"""What knows nothing of the rest: errors, durable storage, interrupts, time."""
