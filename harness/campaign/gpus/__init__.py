"""GPUs that take no runs, or whose failures say little: unhealthy GPUs, and GPUs that have not yet passed a probe."""
