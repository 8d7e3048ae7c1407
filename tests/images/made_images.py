"""Remove exactly the images that a session of tests makes in an engine, because the engine may be the user's."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from docker.errors import APIError

from harness.environments.docker.own_images import own_ids
from harness.host.engine import Engine

# The addresses of registries that the tests have served.
SERVED: set[str] = set()
# How many of the builder's ids fit on one command line.
AT_ONCE = 500


@contextmanager
def removed_at_the_end(engine: Engine) -> Iterator[None]:
    """Remove what this checkout builds inside: images, names in registries of the tests, and the builder's copies.

    Images and caches that were there before stay, with the tags that they had.
    """
    api = engine.client.api
    before = {tag: image["Id"] for image in api.images() for tag in image["RepoTags"] or ()}
    built, cached = own_ids(), set(_cached(engine))
    yield
    made = own_ids() - built
    for image in api.images():
        tags, digests = image["RepoTags"] or [], image["RepoDigests"] or []
        is_made = image["Id"] in made
        served = [name for name in (*tags, *digests) if name.partition("/")[0] in SERVED]
        for name in [image["Id"]] if is_made else served:
            # The image is gone already, or another user's container uses it.
            with suppress(APIError):
                api.remove_image(name, force=True)
        for tag in before.keys() & set(tags) if is_made else ():
            with suppress(APIError):
                api.tag(before[tag], *tag.rsplit(":", 1))
    fresh = sorted(set(_cached(engine)) - cached)
    for begin in range(0, len(fresh), AT_ONCE):
        chosen = f"id=^({'|'.join(map(re.escape, fresh[begin : begin + AT_ONCE]))})$"
        command = [engine.builder.program, *engine.builder.prune, "--all", "--force", "--filter", chosen]
        subprocess.run(command, env=engine.builder.variables, capture_output=True, check=False)


def _cached(engine: Engine) -> Iterator[str]:
    api = engine.client.api
    answer = api.get(f"{api.base_url}/v{api.api_version}/system/df", params={"type": "build-cache"})
    answer.raise_for_status()
    return (cache["ID"] for cache in answer.json()["BuildCache"] or [])
