"""Reads the progress files of a run while they grow."""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from harness.evidence.app_files import Progress


class ProgressReader:
    """Yields every line of `progress-*.jsonl` once. A line that is still being written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}

    def new(self) -> Iterator[Progress]:
        """The lines since the last call; lines that are not progress are passed over."""
        for name in self._grown():
            with (self._folder / name).open("rb") as stream:
                stream.seek(self._offsets.get(name, 0))
                content = stream.read()
            end = content.rfind(b"\n") + 1
            self._offsets[name] = self._offsets.get(name, 0) + end
            for line in content[:end].splitlines():
                try:
                    yield Progress.model_validate_json(line)
                except ValidationError:
                    continue

    def _grown(self) -> list[str]:
        # Asked ten times a second: not by Path.glob, which takes several times as long.
        with os.scandir(self._folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.startswith("progress-")
                and entry.name.endswith(".jsonl")
                and entry.stat().st_size > self._offsets.get(entry.name, 0)
            )
