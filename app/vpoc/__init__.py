"""Volume-profile features of E-mini S&P 500 futures, and a training loop that reports what it really did.

The rooms of this package, top floor first; a room imports only from rooms below it:

| room | content |
|---|---|
| `__main__` | `python -m vpoc` |
| `cli` | the command line: finds the command, turns errors into one line |
| `commands` | the commands: options, checks of paths, printing |
| `evaluation` | is there an edge, forward in time |
| `probes` | short checks of a stack and its devices, each in a process of its own |
| `training` | samples, loop, strategies, checkpoints, injected faults |
| `gpu_memory` | memory of GPUs, as torch and as the amdgpu driver report it |
| `plots` | pictures of sessions with their volume profiles |
| `features` | features and targets, one row per session or per bar |
| `profile` | the volume profile in exact integers |
| `data` | bars: reading, rules, merging, sessions and calendar, synthetic data |
| `models` | the networks |
| `ranks` | the processes that train together on one host |
| `kernel` | the compiled profile kernel |
| `device` | the device a run was asked for |
| `progress` | progress lines of a run |
| `step_stage` | where in an optimizer step a process is |
| `stacks` | stacks of all threads, written on request |
| `checksummed_parquet` | parquet files that know their own SHA-256 |
| `importing` | importing large packages |
| `source` | the identity of the source that computes features |
| `files` | reading whole files, writing files atomically |
| `terminal` | progress bars |
| `arrays` | types of numpy arrays |
| `errors` | errors that a person can put right |
"""

__version__ = "0.1.0"
