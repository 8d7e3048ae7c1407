"""`matrix keys`: parses its options and prints; the keys themselves are handled elsewhere."""

from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.shared import Settings, as_json, pass_settings, print_json, print_lines
from harness.registry.attestations.keys import (
    OWN_NAME,
    distrust,
    ensure_own_key,
    keys_folder,
    known_keys,
    public_key_in,
    read_public_key,
    trust,
)


@click.command()
@click.option(
    "--trust",
    "trusted",
    metavar="FILE|LINE",
    help="Trust this public key: a PEM file, or one that this prints.",
)
@click.option("--name", help="Name for the key that is trusted.  [default: part of its fingerprint]")
@click.option("--distrust", "forgotten", metavar="NAME", help="Forget a key that was trusted.")
@click.option("--public", is_flag=True, help="Print your public key as the PEM file that `cosign --key` takes.")
@as_json
@pass_settings
def keys(
    settings: Settings, trusted: str | None, name: str | None, forgotten: str | None, public: bool, as_json: bool
) -> None:
    """List the keys whose signatures are trusted here; creates your own key if there is none yet.

    `matrix push` and `matrix promote` sign with your key. A line is NAME, fingerprint, and the public key as one word,
    which others give to `matrix keys --trust`, or put under `signatures` in matrix.yaml.
    """
    own = ensure_own_key()
    if trusted:
        file = Path(trusted)
        trust(public_key_in(file) if file.is_file() else read_public_key(trusted), name)
    elif name:
        raise UserError("--name names the key that --trust gives; give both")
    if forgotten:
        distrust(forgotten)
    if public:
        print_lines([own.public.pem.decode().rstrip()])
        return
    known = known_keys(settings.matrix.signatures.keys)
    listed = {OWN_NAME: known.pop(OWN_NAME, own.public), **known}
    if as_json:
        shown = [{"name": of, "fingerprint": key.fingerprint, "key": key.line} for of, key in listed.items()]
        print_json({"folder": str(keys_folder()), "keys": shown})
    else:
        print_lines([f"{of} {key.fingerprint} {key.line}" for of, key in listed.items()])
