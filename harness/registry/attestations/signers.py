"""Decides whom to trust: who signed the evidence of a known-good tag, and whether that is enough."""

from collections.abc import Callable

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.matrix.cells import SignerPolicy
from harness.registry.attestations.attached import Signed, signed_beside
from harness.registry.attestations.attest import EVIDENCE
from harness.registry.attestations.keys import OWN_NAME, known_keys, trust
from harness.registry.oci import Repository
from harness.registry.tags.promotions import KnownGood

Ask = Callable[[str], bool]
"""Asks the user a question; returns False if nobody can answer."""


def nobody(_: str) -> bool:
    """Answer no, because nobody can be asked."""
    return False


def check_signer(evidence: KnownGood, policy: SignerPolicy, ask: Ask = nobody) -> str:
    """Return who signed the evidence of a tag in a registry, in words, if that signer may be trusted.

    The user is asked about an unknown key once; after a yes the key is trusted.

    Raises:
        UserError: when no trusted key signed the evidence, or the registry fails.
    """
    if evidence.repository is None or evidence.digest is None:
        return "not signed: it is of this host"
    beside = signed_beside(Repository(evidence.repository), evidence.digest, known_keys(policy.keys))
    signed = [one for one in beside if _says(one, evidence)]
    if known := sorted({one.name for one in signed if one.name}, key=lambda name: name != OWN_NAME):
        return f"signed by {' and '.join(known)}"
    about = f"{evidence.tag} in {evidence.repository}"
    if signed:
        key = signed[0].key
        trusting = f"`matrix keys --trust {key.line}` trusts it, if `matrix keys` at its owner's has that fingerprint, "
        _allow(policy.unknown, f"{about} is signed by {key.fingerprint}, a key that is not known here", trusting, ask)
        if policy.unknown == "accept":
            return f"signed by {key.fingerprint}, a key not known here"
        return f"signed by {trust(key)}, a key that is trusted from now on"
    _allow(policy.unsigned, f"{about} is not signed", "", ask)
    return "not signed"


def _says(signed: Signed, evidence: KnownGood) -> bool:
    """Return whether a statement contains this evidence, except that a registry may be known by other names."""
    if signed.statement.kind != EVIDENCE:
        return False
    try:
        told = KnownGood.model_validate(signed.statement.predicate)
    except ValidationError:
        return False
    return told.model_copy(update={"repository": None}) == evidence.model_copy(update={"repository": None})


def _allow(rule: str, what: str, remedy: str, ask: Ask) -> None:
    if rule == "accept" or (rule == "ask" and ask(f"{what}. Use it?")):
        return
    raise UserError(f"{what}; {remedy}`--force` uses it anyway, and `signatures` in matrix.yaml says whom to trust")
