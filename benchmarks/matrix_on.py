"""`matrix` on a synthetic machine: `matrix_on.py ROOT ...` is `matrix ...` where /sys and /run are those under ROOT."""

import sys
from functools import partial
from pathlib import Path

from harness.campaign.bench import BenchOptions
from harness.cli import main, run

if __name__ == "__main__":
    root = Path(sys.argv[1])
    setattr(run, "BenchOptions", partial(BenchOptions, root=root))  # noqa: B010
    main.main(sys.argv[2:])
