"""The state of a host at a run that evidence depends on: kernel, driver, firmware, VBIOS, parameters. Pure."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from harness.host.facts import HostFacts

HostSettings = Mapping[str, str]
"""VBIOS by GPU, and parameters of kernel and driver by name."""
VBIOS = "VBIOS of GPU "


class HostState(NamedTuple):
    """The part of a host's state that can change under a run; `firmware` by GPU and block.

    `settings` are no part of its kind. Of a run on a CPU alone firmware and settings are empty: it depends on neither.
    """

    kernel: str
    driver: str | None
    firmware: Mapping[str, str]
    settings: HostSettings

    @property
    def as_json(self) -> str:
        """Return it as text, the same for the same state."""
        return json.dumps(self._asdict(), sort_keys=True)


def state_of(host: HostFacts, *, gpus_used: bool) -> HostState:
    """Return the state of a host for a run on its GPUs, or for one on the CPU alone."""
    gpus = host.gpus if gpus_used else ()
    firmware = {f"GPU {gpu.index} {block}": version for gpu in gpus for block, version in gpu.firmware.items()}
    vbios = {f"{VBIOS}{gpu.index}": gpu.vbios for gpu in gpus if gpu.vbios}
    return HostState(host.kernel, host.driver, firmware, {**vbios, **(host.kernel_parameters if gpus else {})})


def settings_of(host: HostFacts | None) -> dict[str, HostSettings]:
    """Return the settings of a host as it is now by its machine, for `judge`; of None nothing."""
    return {host.machine: state_of(host, gpus_used=True).settings} if host else {}


@lru_cache(maxsize=1024)
def state_from_json(text: str) -> HostState:
    """Return the state that a text tells, as `HostState.as_json` gives it."""
    return HostState(**json.loads(text))


def changed_settings(had: HostSettings, now: HostSettings) -> tuple[str, ...]:
    """Return what changed, such as `amdgpu.mes was 0, is 1`.

    What one side does not tell is no change: the VBIOS of a GPU, or all parameters, as in records of before they were
    kept. A single parameter that is missing among others was not set.
    """
    both = [{name: value for name, value in side.items() if not name.startswith(VBIOS)} for side in (had, now)]
    names = {name for name in had.keys() & now.keys() if name.startswith(VBIOS)}
    if all(both):
        names |= both[0].keys() | both[1].keys()
    return tuple(
        f"{name} was {had.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted(names)
        if had.get(name) != now.get(name)
    )
