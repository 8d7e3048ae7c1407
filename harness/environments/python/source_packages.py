"""Fetches packages that exist only as source against the hashes of a lock, and builds them into wheels.

Building runs the package's own code on this host, as installing it with pip would. The build tools are locked by hash.
"""

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.file_system_sync import sync_file_system
from harness.base.paths import WHEELS
from harness.environments.python.pins import BUILD_TOOLS
from harness.environments.python.uv_process import uv
from harness.matrix.stacks import Stack

# A fixed time, so that the same source gives the same wheel.
BUILD_TIME = "1700000000"


def built_wheel(stack: Stack, name: str, version: str, hashes: Collection[str]) -> Path | None:
    """Return the wheel of a source package with one of these hashes, built now if it was not built before.

    None if the stack's source has no such file.

    Raises:
        UserError: when the index does not answer, or the package cannot be built.
    """
    made = (wheel for digest in sorted(hashes) for wheel in _folder(digest).glob("*.whl"))
    return next(made, None) or _build(stack, name, version, hashes)


def _folder(digest: str) -> Path:
    return WHEELS / "built" / digest[:16]


def _build(stack: Stack, name: str, version: str, hashes: Collection[str]) -> Path | None:
    # Import here, because it is slow, and few packages are built.
    from harness.environments.python.index_pages import download, files_of  # noqa: PLC0415

    (WHEELS / "built").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WHEELS / "built", prefix=".build-") as place:
        for source, url in files_of(stack, name, version):
            file, made = Path(place, source), Path(place, "made")
            if source.endswith(".whl") or (digest := download(url, file)) not in hashes:
                continue
            pypi = ["--default-index", stack.pypi] if stack.pypi else []
            tools: list[str | Path] = ["--build-constraints", BUILD_TOOLS, "--require-hashes", *pypi]
            variables = {"SOURCE_DATE_EPOCH": BUILD_TIME}
            uv("build", "--quiet", "--wheel", "--out-dir", made, *tools, file, variables=variables)
            wheel = next(made.glob("*.whl"), None)
            if wheel is None:
                raise UserError(f"stack {stack.name}: {source} was built, and gave no wheel")
            # It is not built again: it must be whole also if a run takes the host down.
            sync_file_system(made)
            shutil.rmtree(_folder(digest), ignore_errors=True)
            shutil.move(made, _folder(digest))
            return _folder(digest) / wheel.name
    return None
