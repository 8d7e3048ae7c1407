"""Copies that a builder keeps of the files given to builds: gigabytes of wheels for each stack."""

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from harness.host.engine import Engine
from harness.host.engine_errors import engine_errors

PRUNE_TRIES = 5
SMALL_BYTES = 1_000_000


@dataclass(frozen=True)
class Copy:
    """A builder's copy of files given to it: its size in bytes, and the number of builds that used it."""

    size: int
    uses: int


def copies_in_builder(engine: Engine) -> dict[str, Copy]:
    """Return the builder's copies of files given to it, by id."""
    api = engine.client.api
    with engine_errors("asking for the builder's copies"):
        # Do not use the library: it also asks for the sizes of all images, which is slow and fails while others build.
        answer = api.get(f"{api.base_url}/v{api.api_version}/system/df", params={"type": "build-cache"})
        answer.raise_for_status()
        caches = answer.json()["BuildCache"] or []
    given = (cache for cache in caches if cache["Type"] == "source.local")
    return {cache["ID"]: Copy(int(cache["Size"]), int(cache["UsageCount"])) for cache in given}


def drop_copies(engine: Engine, before: Mapping[str, int]) -> None:
    """Drop the builder's copies of the files given to our builds: gigabytes of wheels for each stack. Layers stay.

    `before` holds the copies that were there before, with their number of uses. A copy with the same number still
    belongs to other projects. A copy used since has our files in it, because newer builders share one between folders
    of one name.
    """
    builder = engine.builder
    for _ in range(PRUNE_TRIES):
        mine = {name for name, copy in copies_in_builder(engine).items() if before.get(name) != copy.uses}
        if not mine:
            break
        command = [builder.program, *builder.prune, "--force", "--filter", f"id=^({'|'.join(sorted(mine))})$"]
        subprocess.run(command, env=builder.variables, capture_output=True, check=False)
        left = copies_in_builder(engine)
        if not any(left[name].size > SMALL_BYTES for name in mine & left.keys()):
            break
        # The builder holds the copy of an interrupted build for a moment longer.
        time.sleep(1)
