"""Runs a command, then has the engine as it was before: without what the checkout on PYTHONPATH built there."""

import subprocess
import sys

from harness.host.engine import find_engine
from tests.images.made_images import removed_at_the_end

engine = find_engine()
if engine is None:
    sys.exit("ci: no Docker engine answers")
with removed_at_the_end(engine):
    done = subprocess.run(sys.argv[1:], check=False)
sys.exit(done.returncode)
