"""The state of a host during a run on which evidence depends: kernel, driver, firmware, VBIOS, parameters. Pure."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from harness.host.facts import HostFacts

HostSettings = Mapping[str, str]
"""The VBIOS by GPU, and the parameters of kernel and driver by name."""
VBIOS = "VBIOS of GPU "


class HostState(NamedTuple):
    """The part of a host's state that can change between runs.

    `firmware`: the version by GPU and block.
    `settings`: VBIOS and parameters, which are not part of the kind of host.
    Both are empty for a run on the CPU, which depends on neither.
    """

    kernel: str
    driver: str | None
    firmware: Mapping[str, str]
    settings: HostSettings

    @property
    def as_json(self) -> str:
        """The state as JSON; equal states give equal text."""
        return json.dumps(self._asdict(), sort_keys=True)


def state_of(host: HostFacts, *, gpus_used: bool) -> HostState:
    """Return the state of a host for a run on its GPUs, or for one on the CPU alone."""
    gpus = host.gpus if gpus_used else ()
    firmware = {f"GPU {gpu.index} {block}": version for gpu in gpus for block, version in gpu.firmware.items()}
    vbios = {f"{VBIOS}{gpu.index}": gpu.vbios for gpu in gpus if gpu.vbios}
    return HostState(host.kernel, host.driver, firmware, {**vbios, **(host.kernel_parameters if gpus else {})})


def settings_of(host: HostFacts | None) -> dict[str, HostSettings]:
    """Return the current settings of a host, by its machine, for `judge`; an empty dict for None."""
    return {host.machine: state_of(host, gpus_used=True).settings} if host else {}


@lru_cache(maxsize=64)
def state_from_json(text: str) -> HostState:
    """Return the state from the text of `HostState.as_json`."""
    return HostState(**json.loads(text))


def changed_settings(had: HostSettings, now: HostSettings) -> tuple[str, ...]:
    """Return the changes, such as `amdgpu.mes was 0, is 1`.

    Values that one side does not report are no change: the VBIOS of a GPU, or all parameters, as in records from before
    they were kept. A single parameter that is missing among others was not set.
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


def changed_kind(had: HostState, now: HostState) -> tuple[str, ...]:
    """Return what made a machine another kind of host, such as `kernel was 6.12.9, is 6.18.2`."""
    sides = [
        {"kernel": one.kernel, "amdgpu driver": one.driver or "the kernel's", **one.firmware} for one in (had, now)
    ]
    names = sorted(sides[0].keys() & sides[1].keys(), key=list(sides[1]).index)
    return tuple(
        f"{name} was {sides[0][name]}, is {sides[1][name]}" for name in names if sides[0][name] != sides[1][name]
    )
