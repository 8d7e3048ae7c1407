"""Plans a campaign: the runs that are possible here, the time and space that they take, and the GPUs to use."""
