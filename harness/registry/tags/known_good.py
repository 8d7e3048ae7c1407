"""Chooses the known-good tag that a host may use, and gives the reasons against others."""

from collections import Counter
from collections.abc import Container

from harness.base.durations import day_of
from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.paths import LOCKS
from harness.evidence.host_state import changed_settings, state_of
from harness.evidence.records import Results
from harness.evidence.verdicts.scope import is_of_strategy
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import training_gpus
from harness.matrix.strategies import Strategy
from harness.registry.tags.promotions import PROMOTIONS, KnownGood, read_moves, standing_tags
from harness.registry.tags.registry_tags import RegistryTags
from harness.registry.tags.suspension import Suspension

__all__ = ["KnownGood", "NotForThisHostError", "NothingPromotedError", "resolve_tag", "why_not_usable"]

OVERRIDE = "promote a cell on this host, or name one with --cell"


class NothingPromotedError(UserError):
    """No tag is in force."""

    code = "nothing-promoted"


class NotForThisHostError(UserError):
    """A tag is in force, but may not be used here; `evidence` is that of the tag."""

    code = "not-for-this-host"

    def __init__(self, text: str, evidence: KnownGood) -> None:
        super().__init__(text)
        self.evidence = evidence


def why_not_usable(evidence: KnownGood, host: HostFacts, now: float, lock: str | None = None) -> str | None:
    """Return why a host may not use a tag, in one line; None if it may.

    `now` is in seconds since 1970. `lock` is the SHA-256 of the stack's present lock, if known.
    """
    if of_another := _of_another_device(evidence, host):
        return of_another
    if now >= evidence.expires_at:
        return f"its evidence expired on {day_of(evidence.expires_at)}"
    if evidence.gfx:
        fitting = [gpu for gpu in training_gpus(host) if gpu.gfx in evidence.gfx]
        if len(fitting) < evidence.gpu_count:
            wanted = f"{evidence.gpu_count} x {' or '.join(evidence.gfx)}"
            return f"it is for {wanted}, and this host has {_gpus(host)}"
        if evidence.driver != host.driver:
            return f"its runs had amdgpu driver {evidence.driver}, and this host has {host.driver}"
        changed = [_changed_firmware(evidence, gpu) for gpu in fitting]
        if changed.count("") < evidence.gpu_count:
            return next(filter(None, changed))
    if evidence.kernel != host.kernel:
        return f"its runs had kernel {evidence.kernel}, and this host has {host.kernel}"
    if evidence.host_fingerprint in host.former_fingerprints:
        since = host.changes[host.former_fingerprints.index(evidence.host_fingerprint) :]
        return f"its runs were on this host before it was changed: {', '.join(since)}"
    if evidence.host_fingerprint == host.fingerprint:
        since = changed_settings(evidence.settings, state_of(host, gpus_used=bool(evidence.gfx)).settings)
        if since:
            return f"its runs were on this host before it changed: {', '.join(since)}"
    made_with = evidence.environment.get("lock")
    if lock and made_with and lock != made_with:
        return f"the lock of {evidence.stack} has changed since"
    return None


def resolve_tag(
    registry: str | None,
    host: HostFacts,
    results: Results,
    now: float,
    strategy: Strategy | None = None,
    suspension: Suspension = lambda _: None,
    cells: Container[str] | None = None,
) -> KnownGood:
    """Return the newest promotion that this host may use; a host with GPUs may use none of a CPU.

    - `registry`: the registry with the history; None for the history in the results folder.
    - `strategy`: promotions whose runs used this strategy come first.
    - `suspension`: returns why a promotion is suspended: later runs of its image reset a GPU, or failed too often.
    - `cells`: the cells of the matrix file; promotions of others come last.

    Raises:
        NothingPromotedError: when no tag is in force.
        NotForThisHostError: when no tag in force may be used here, with the reason for the newest.
        UserError: when the registry does not answer, the tag does not point where its history says, or the history is
            damaged.
    """
    tags = RegistryTags(registry) if registry else None
    found = standing_tags(tags.moves() if tags else read_moves(results))
    newest_first = sorted(found.values(), key=lambda evidence: evidence.promoted_at, reverse=True)

    def is_later(one: KnownGood) -> tuple[bool, bool]:
        return (
            cells is not None and one.cell not in cells,
            strategy is not None and not is_of_strategy(one.scope, strategy),
        )

    asked_first = sorted(newest_first, key=is_later)
    if not asked_first:
        place = registry or results.folder / PROMOTIONS
        raise NothingPromotedError(f"{place}: no known-good tag is in force; `matrix promote` creates one")

    def why_not(evidence: KnownGood) -> str | None:
        return why_not_usable(evidence, host, now, lock_of(evidence)) or suspended(suspension(evidence))

    for evidence in asked_first:
        if why_not(evidence) is None:
            if tags:
                tags.check(evidence)
            return _reached_by(evidence, tags)
    # Prefer the reason for a tag of this kind of device, because the user may be able to fix it.
    nearest = min(asked_first, key=lambda evidence: _of_another_device(evidence, host) is not None)
    refused = f"{nearest.tag} may not be used here: {why_not(nearest)}; {OVERRIDE}"
    raise NotForThisHostError(refused, _reached_by(nearest, tags))


def suspended(why: str | None) -> str | None:
    """Return that a tag is suspended, in words; None if it is not."""
    return f"it is suspended: {why}" if why else None


def _reached_by(evidence: KnownGood, tags: RegistryTags | None) -> KnownGood:
    """Return the evidence with the repository in the user's registry, which the promoter may know by another name."""
    return evidence.model_copy(update={"repository": tags.name}) if tags else evidence


def lock_of(evidence: KnownGood) -> str | None:
    """Return the SHA-256 of this checkout's lock for the stack of a tag; None if it has none."""
    # Where the code of each GPU is packages of its own, the lock names the GPUs.
    names = (evidence.stack, "-".join((evidence.stack, *evidence.gfx)))
    found = (file for file in (LOCKS / f"{name}.txt" for name in names) if file.is_file())
    return next(map(file_hash, found), None)


def _of_another_device(evidence: KnownGood, host: HostFacts) -> str | None:
    if not evidence.gfx and training_gpus(host):
        return f"it is for a CPU, and this host has {_gpus(host)}"
    return None


def _changed_firmware(evidence: KnownGood, gpu: GpuFacts) -> str:
    """Return how a GPU's firmware differs from that of all GPUs of its target in the evidence; "" if it does not.

    Blocks that only one side reports are no difference, and neither is anything if the evidence has no firmware.
    """
    differences = []
    for had in evidence.firmware.get(gpu.gfx, ()):
        blocks = [block for block in sorted(had.keys() & gpu.firmware.keys()) if had[block] != gpu.firmware[block]]
        if not blocks:
            return ""
        told = ", ".join(f"{block} {had[block]}" for block in blocks)
        now = ", ".join(f"{block} {gpu.firmware[block]}" for block in blocks)
        differences.append(f"its runs had firmware {told}, and GPU {gpu.index} of this host has {now}")
    return differences[0] if differences else ""


def _gpus(host: HostFacts) -> str:
    counted = Counter(gpu.gfx for gpu in training_gpus(host))
    counts = [f"{count} x {target}" for target, count in counted.items()]
    return " and ".join(counts) or "no GPU that torch has kernels for"
