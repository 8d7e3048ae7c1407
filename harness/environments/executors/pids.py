"""The limit of processes and threads of a container, in a module that does not import the slow Docker SDK."""

# Lowest limit. 4,096 busy processes made a host with two cores unusable until they were killed, which took minutes.
LEAST_PIDS = 1024
# Each rank has loader workers, and each of these, like its libraries, has threads for the cores.
PIDS_PER_CORE_AND_RANK = 64


def pids_limit(cores: int, ranks: int) -> int:
    """Return the most processes and threads that the container of a run may have."""
    return max(LEAST_PIDS, PIDS_PER_CORE_AND_RANK * cores * ranks)
