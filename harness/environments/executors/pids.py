"""The most processes and threads that a container may have. Known without the Docker SDK, which takes its time."""

# 4,096 busy ones made a host of two cores unusable until they were killed, which took minutes.
LEAST_PIDS = 1024
# Each rank has loader workers, and each of those, like its libraries, threads by cores.
PIDS_PER_CORE_AND_RANK = 64


def pids_limit(cores: int, ranks: int) -> int:
    """Return how many processes and threads the container of a run may have."""
    return max(LEAST_PIDS, PIDS_PER_CORE_AND_RANK * cores * ranks)
