"""The stack itself: what is installed, and which devices it sees."""

import platform
import time

from vpoc.probes.site import Site, WrongResultError


def imports(_site: Site) -> str:
    """Import torch and numpy, and pass numbers from one to the other."""
    start = time.monotonic()
    import numpy as np  # noqa: PLC0415 - the import is the check
    import torch  # noqa: PLC0415

    seconds = time.monotonic() - start
    # A torch that was built for another numpy can be imported, but fails here.
    back = torch.from_numpy(np.arange(5)).mul(2).numpy()
    if back.tolist() != [0, 2, 4, 6, 8]:
        raise WrongResultError(
            f"numbers from numpy through torch came back as {back.tolist()} instead of 0, 2, 4, 6, 8"
        )
    hip, cuda = torch.version.hip, torch.version.cuda
    build = f"HIP {hip}" if hip else f"CUDA {cuda}" if cuda else "for CPUs only"
    versions = f"torch {torch.__version__} ({build}), numpy {np.__version__}, Python {platform.python_version()}"
    return f"{versions}; imported in {seconds:.1f} s"


def device(site: Site) -> str:
    """Name every device."""
    import torch  # noqa: PLC0415 - not before the check `import`

    from vpoc.device import describe  # noqa: PLC0415

    built_for = [
        arch for arch in (torch.cuda.get_arch_list() if site.device == "cuda" else []) if arch.startswith("gfx")
    ]
    found = []
    for each in site.devices:
        site.at(str(each))
        facts = describe(each)
        memory = f"{facts['memory_bytes'] / 2**30:.1f} GiB"
        target = (facts["gfx"] or "").partition(":")[0]
        missing = f" (this torch has no kernels for it, only for {', '.join(built_for)})"
        found.append(
            f"{facts['device']} {facts['name']} {target}".rstrip()
            + f" {memory}"
            + (missing if built_for and target not in built_for else "")
        )
    return "; ".join(found)
