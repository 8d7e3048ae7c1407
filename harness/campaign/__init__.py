"""Many runs planned together: which cells, in which order, on which GPUs, and what they show."""
