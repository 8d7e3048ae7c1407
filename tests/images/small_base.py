"""A base for small images of the stack `cpu`: a stand-in replaces the app, and torch is installed in name only."""

import subprocess
from pathlib import Path
from secrets import token_hex

from harness.base.contract import CONTRACT
from harness.base.files.hashes import json_hash
from harness.base.paths import CHECKOUT
from harness.environments.docker.images import (
    CONTRACT_LABEL,
    INPUTS,
    Image,
    find,
    informative_labels,
    inputs_of,
    stack_tag,
)
from harness.environments.docker.own_images import remember
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import read_lock
from harness.host.engine import Engine
from harness.matrix.load import Given, load_matrix

NAME = "vpoc-test/small-"
STAND_IN = CHECKOUT / "harness" / "rehearsal" / "stand_in_app.py"
# Pushes, pulls and copies to other engines take as long as the layers are large, and half of the base is Perl.
ON_BASE = """\
FROM {} AS whole
RUN rm -rf /usr/bin/*perl* /usr/lib/*/*perl* /usr/lib/*/gconv /usr/share/doc /usr/share/*perl* /var/cache
FROM scratch
COPY --from=whole / /
ENV LANG=C.UTF-8
COPY stand_in_app.py /opt/
COPY site-packages /opt/venv/lib/python3.11/site-packages
"""
ON_SMALL_BASE = """\
FROM {}
RUN mkdir -p /opt/venv/bin && cd /opt/venv/bin \\
    && echo '#!/bin/sh' > python && echo 'exec /usr/bin/python3 -I -S /opt/stand_in_app.py "$@"' >> python \\
    && chmod 755 python
ENTRYPOINT ["/opt/venv/bin/python", "-m", "vpoc"]
USER 65534:65534
"""


def make_small_base(engine: Engine, base: str, folder: Path, stand_in: str = STAND_IN.read_text()) -> str:
    """Make the base, and runtime and stack images of `cpu` on it with real labels; cells' images are built later.

    The packages of the lock seem to be installed, because their metadata is there.
    """
    # The name is new each time, so that no other user or test finds or removes what is made here.
    name = f"{NAME}{token_hex(6)}"
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "mark").write_text(name)
    (folder / STAND_IN.name).write_text(stand_in)
    stack = load_matrix(CHECKOUT / "matrix.yaml", Given(name)).stacks["cpu"]
    named = [(entry.name, entry.version) for entry in read_lock(lock_file(stack))]
    for package, version in (*named, ("vpoc", "0")):
        place = packages / f"{package}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n\n")
    _build(engine, folder, ON_BASE.format(base), name)
    inputs, below = inputs_of(engine, stack), name
    for kind, dockerfile in (("runtime", "FROM {}"), ("stack", ON_SMALL_BASE)):
        labels = {**informative_labels(stack), **inputs.wanted_of(kind), CONTRACT_LABEL: str(CONTRACT)}
        labels[INPUTS] = json_hash(labels)
        _build(engine, folder, dockerfile.format(below), stack_tag(labels), labels)
        below = stack_tag(labels)
    return name


def _build(engine: Engine, folder: Path, dockerfile: str, tag: str, labels: dict[str, str] | None = None) -> Image:
    builder = engine.builder
    words = [word for name, value in (labels or {}).items() for word in ("--label", f"{name}={value}")]
    command = [builder.program, *builder.build, "--quiet", "--tag", tag, *words, "--file", "-", str(folder)]
    subprocess.run(command, input=dockerfile, text=True, env=dict(builder.variables), check=True, capture_output=True)
    image = find(engine, tag)
    assert image
    # The image is removed with all others that are built in this session.
    remember(image)
    return image
