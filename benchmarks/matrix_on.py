"""`matrix` on a made-up machine: `matrix_on.py ROOT ...` is `matrix ...` where /sys and /run are those under ROOT."""

import sys
from functools import partial
from pathlib import Path

from harness.campaign import commands
from harness.campaign.bench import Bench
from harness.cli import main
from harness.host.fingerprint import read_host

if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name, function in (("read_host", partial(read_host, root)), ("Bench", partial(Bench, root=root))):
        setattr(commands, name, function)
    main.main(sys.argv[2:])
