"""Reads the progress files of a run while they grow."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from harness.contracts import Progress


class ProgressReader:
    """Yields every line of `progress-*.jsonl` once. A line that is still being written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new(self) -> Iterator[Progress]:
        """The lines since the last call; lines that are not progress are passed over."""
        for file in sorted(self._folder.glob("progress-*.jsonl")):
            with file.open("rb") as stream:
                stream.seek(self._offsets.get(file, 0))
                content = stream.read()
            end = content.rfind(b"\n") + 1
            self._offsets[file] = self._offsets.get(file, 0) + end
            for line in content[:end].splitlines():
                try:
                    yield Progress.model_validate_json(line)
                except ValidationError:
                    continue
