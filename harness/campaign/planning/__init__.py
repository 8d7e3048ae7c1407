"""The plan of a campaign: what would run here, what that takes, and which GPUs it may use."""
