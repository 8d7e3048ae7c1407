"""Build the images of the hostile app: the real image of a cell, with each attack wrapped around its app.

None of them has a label by which the harness finds images, because the harness would take it for the cell's own.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.attacks.hostile.__main__ import CANARY, EARLIER, NAME, PYTHON, TETHER
from harness.base.paths import CHECKOUT
from harness.environments.docker.images import PREFIX
from harness.host.engine import Engine

LAUNCH = "import sys; sys.path.insert(0, {root!r}); from benchmarks.attacks.hostile.__main__ import main; main()"
REPOSITORY = "vpoc-attack"
ROOT = "/opt/attacks"
DOCKERFILE = """\
FROM {image}
USER 0
COPY attacks {root}
RUN rm /opt/venv/bin/python && cp {root}/python /opt/venv/bin/python
RUN chmod -R a+rX {root} && chmod 755 /opt/venv/bin/python
ENV {python}=/opt/venv/bin/python3 {canary}={canary_path} {earlier}={root}/earlier
{labels}
"""
LABELS = "LABEL " + " ".join(f"{PREFIX}.{kind}=attack" for kind in ("kind", "cell", "stack", "inputs", "preset"))
STAND_IN = """\
FROM {image}
USER 0
COPY app.py python {root}/
RUN rm /opt/venv/bin/python && cp {root}/python /opt/venv/bin/python
RUN chmod -R a+rX {root} && chmod 755 /opt/venv/bin/python
{labels}
"""


def launcher(python: str, root: str) -> str:
    """Return the script that replaces the interpreter."""
    return f'#!/bin/sh\nexec {python} -c "{LAUNCH.format(root=root)}" "$@"\n'


def process_launcher(file: Path, app: Path, attack: str, canary: Path, earlier: Path, tether: Path) -> Path:
    """Write an interpreter for the process executor that carries out an attack, with the app `app` inside."""
    values = {NAME: attack, PYTHON: app, CANARY: canary, EARLIER: earlier, TETHER: tether}
    lines = ["#!/bin/sh", *(f"export {name}='{value}'" for name, value in values.items())]
    file.write_text(
        "\n".join(lines) + "\n" + launcher(sys.executable, str(CHECKOUT)).partition("\n")[2], encoding="utf-8"
    )
    file.chmod(0o755)
    return file


def hostile_image(engine: Engine, image: str, canary: Path, earlier: Path) -> str:
    """Build the image that all attacks share from the image of a cell, and return its id."""
    text = DOCKERFILE.format(
        image=image,
        root=ROOT,
        python=PYTHON,
        canary=CANARY,
        canary_path=canary,
        earlier=EARLIER,
        labels=LABELS,
    )
    with tempfile.TemporaryDirectory(prefix="vpoc-attack-") as folder:
        context = Path(folder)
        package = context / "attacks" / "benchmarks" / "attacks"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(__file__).parent / "hostile", package / "hostile", ignore=ignore)
        shutil.copytree(earlier, context / "attacks" / "earlier")
        (context / "attacks" / "python").write_text(launcher("/opt/venv/bin/python3", ROOT), encoding="utf-8")
        (context / "Dockerfile").write_text(text, encoding="utf-8")
        built, _ = engine.client_without_timeout.images.build(
            path=str(context), tag=f"{REPOSITORY}:base", rm=True, forcerm=True
        )
    return str(built.id)


def stand_in_image(engine: Engine, image: str) -> str:
    """Build the image of the honest run after each attack, in which a stand-in for the app trains in no time."""
    text = STAND_IN.format(image=image, root=ROOT, labels=LABELS)
    with tempfile.TemporaryDirectory(prefix="vpoc-attack-") as folder:
        context = Path(folder)
        shutil.copyfile(CHECKOUT / "harness" / "rehearsal" / "stand_in_app.py", context / "app.py")
        start = f'#!/bin/sh\nexec /opt/venv/bin/python3 -I -S {ROOT}/app.py "$@"\n'
        (context / "python").write_text(start, encoding="utf-8")
        (context / "Dockerfile").write_text(text, encoding="utf-8")
        built, _ = engine.client_without_timeout.images.build(
            path=folder, tag=f"{REPOSITORY}:stand-in", rm=True, forcerm=True
        )
    return str(built.id)


def attack_image(engine: Engine, base: str, attack: str) -> str:
    """Build the image of one attack and return its id."""
    text = f"FROM {base}\nENV {NAME}={attack}\n".encode()
    built, _ = engine.client_without_timeout.images.build(
        fileobj=io.BytesIO(text), tag=f"{REPOSITORY}:{attack}", rm=True, forcerm=True
    )
    return str(built.id)


def remove_image(engine: Engine, name: str) -> None:
    """Remove an image of the bench."""
    engine.client.images.remove(f"{REPOSITORY}:{name}", force=True)
