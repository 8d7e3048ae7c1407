"""GPUs that take no runs, or whose failures say little: unhealthy ones, and those that have not yet passed a probe."""
