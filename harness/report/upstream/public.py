"""Makes texts public: replaces names, paths, addresses and keys, and counts the replacements by kind. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from harness.registry.share.anonymise import DATA, RUN, TEMPORARY
from harness.registry.share.names import HOME, USER
from harness.registry.share.scrub import HOST, PATH, Scrubber

ADDRESS, MAIL, SERIAL, SECRET = "<address>", "<mail>", "<serial>", "<secret>"
KINDS: Mapping[str, str] = {
    HOST: "names and addresses of hosts",
    USER: "names of users",
    HOME: "home folders",
    "<results>": "the results folder",
    "<checkout>": "the folder of the checkout",
    RUN: "the folder of the run",
    DATA: "names and paths of data",
    TEMPORARY: "temporary folders",
    PATH: "other paths",
    ADDRESS: "other addresses in networks",
    MAIL: "mail addresses",
    SERIAL: "serial numbers of GPUs",
    SECRET: "passwords and keys",
}
# Octets have no leading zeros: a version of four numbers, as a VBIOS has, is written with them.
_IPV4 = r"(?<![\w.-])(?:0|[1-9]\d{0,2})(?:\.(?:0|[1-9]\d{0,2})){3}(?![\w-]|\.\d)"
_IPV6 = r"(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::{1,2}[0-9a-f]{1,4}){2,7}(?![\w:])"
_MAC = r"(?<![\w:])(?:[0-9a-f]{2}:){5,}[0-9a-f]{2}(?![\w:])"
# Keys in the formats of Hugging Face, GitHub, GitLab, AWS, OpenAI and Anthropic, Slack, and JSON web tokens.
_KEY = r"(?<![\w-])(?:hf_|gh[opsur]_|github_pat_|glpat-|AKIA|ASIA|sk-|xox[abeoprs]-|eyJ[\w-]{8,}\.)[\w.-]{12,}"
# Text that is labelled as a secret: `api_key=...`, `"token": "..."`, `Authorization: Bearer ...`, and in a URL.
_SAID = (
    r"(?<=bearer )[\w.~+/=-]{8,}|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
    r"|(?P<said>(?:password|passwd|secret|token|api[_-]?key|access[_-]?key)[\"']?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"(?!<secret>)[^\s\"',;<>]{6,}"
)
# Without its first condition, each of a hundred thousand letters would be tried as the first one.
_MAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_OTHERS = re.compile(
    rf"(?P<secret>{_KEY}|{_SAID})|(?P<ipv4>{_IPV4})|(?P<address>{_IPV6}|{_MAC})|(?P<mail>{_MAIL})|(?P<serial>GPU-[0-9a-f]{{12,}})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Public:
    """Makes texts public with the scrubber of a run, which `matrix export` uses as well."""

    scrubber: Scrubber

    def text(self, text: str) -> str:
        """Return the text without names, paths, addresses, serial numbers and keys. A second pass changes nothing."""
        return _OTHERS.sub(_instead, self.scrubber.text(text))


def taken_out(text: str) -> dict[str, int]:
    """Return how often each kind was replaced in a public text."""
    found = {what: text.count(token) for token, what in KINDS.items()}
    return {what: count for what, count in found.items() if count}


def _instead(found: re.Match[str]) -> str:
    if found["secret"]:
        return f"{found['said'] or ''}{SECRET}"
    if written := found["ipv4"]:
        try:
            address = IPv4Address(written)
        except ValueError:
            return written
        return written if address.is_loopback or address.is_unspecified else ADDRESS
    return ADDRESS if found["address"] else MAIL if found["mail"] else SERIAL
