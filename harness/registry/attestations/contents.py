"""The bill of materials of an image (CycloneDX): the packages in its lock, and those that are really installed."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from harness.base.errors import UserError
from harness.base.text import safe_text
from harness.environments.docker.image_tree import image_files
from harness.environments.docker.images import Image
from harness.host.engine import Engine
from harness.matrix.stacks import Stack

SITE = re.compile(r"opt/venv/lib/python[\d.]+/site-packages/[^/]+\.dist-info/METADATA")
PACKAGES = "var/lib/dpkg/status"
APP_PACKAGE = "vpoc"
# Largest file that is read from an image; the package list of a whole Debian desktop has some five megabytes.
LARGEST_READ = 8 << 20
# Most packages of both kinds. The time to make a bill grows with their square; 3,000 took 9 s.
MOST_PACKAGES = 3000
# Values of a bill's property that says how the installed packages compare with the image's lock.
AS_LOCKED, LOCK_NOT_HERE = "as locked", "not compared: the lock was not here"


@dataclass(frozen=True)
class Contents:
    """The installed packages of Python and of Debian, each by name with its version."""

    python: Mapping[str, str]
    debian: Mapping[str, str]


def contents_of_image(engine: Engine, image: Image) -> Contents:
    """Return what is installed in an image, according to the metadata files of the packages in it.

    Raises:
        UserError: when the engine cannot export the image, that metadata is larger than in any real image, there are
            too many packages, or a package of Python is there in two versions.
    """
    python: dict[str, str] = {}
    debian: dict[str, str] = {}
    with image_files(engine, image) as files:
        for name, _, stream in files:
            if stream and SITE.fullmatch(name):
                told = _read(stream, name, image)
                package, version = canonicalize_name(_field("Name", told)), _field("Version", told)
                # One of the two would hide the other from the comparison with the lock.
                if python.setdefault(package, version) != version:
                    raise UserError(f"{image.id}: has {package} {python[package]} and {version}; do not trust it")
            elif stream and name == PACKAGES:
                debian = dict(_installed(_read(stream, name, image).decode("utf-8", "replace")))
            if len(python) + len(debian) > MOST_PACKAGES:
                raise UserError(f"{image.id}: has more than {MOST_PACKAGES:,} packages; do not trust it")
    return Contents(python, debian)


def not_as_locked(contents: Contents, locked: Mapping[str, str], stack: Stack) -> list[str]:
    """Return the differences between the installed packages and a lock, one per line; the app itself is in no lock.

    Neither is what a base image with torch brings into the same environment, as AMD's does.
    """
    of_base = {name for name in contents.python if stack.torch_from_base and name not in locked}
    installed = {name: version for name, version in contents.python.items() if name not in {APP_PACKAGE, *of_base}}
    return [
        f"{name}: the lock names {locked.get(name, 'none')}, installed is {installed.get(name, 'none')}"
        for name in sorted(locked.keys() | installed.keys())
        if locked.get(name) != installed.get(name)
    ]


def bill_of_materials(contents: Contents, name: str, digest: str, made: int, *, as_locked: bool) -> dict[str, Any]:
    """Return a bill in CycloneDX 1.6, which is the same for the same image. `made` is in seconds since 1970.

    `as_locked` says whether the installed packages were found to be those of the lock.

    Raises:
        UserError: when a package has a name that no package can have.
    """
    of_kinds = (("pypi", None, contents.python), ("deb", "debian", contents.debian))
    try:
        purls = [PackageURL(kind, of, *package) for kind, of, packages in of_kinds for package in packages.items()]
        components = [
            Component(name=p.name, version=p.version, type=ComponentType.LIBRARY, purl=p, bom_ref=str(p)) for p in purls
        ]
    except (ValueError, TypeError):
        raise UserError(f"{name}: has a package with a name that no package can have; do not trust it") from None
    bom = Bom(
        components=components,
        serial_number=uuid5(NAMESPACE_OID, digest),
    )
    bom.metadata.timestamp = datetime.fromtimestamp(made, UTC)
    image = Component(name=name, version=digest, type=ComponentType.CONTAINER, bom_ref=name)
    bom.metadata.component = image
    bom.metadata.properties.add(Property(name="vpoc:lock", value=AS_LOCKED if as_locked else LOCK_NOT_HERE))
    bom.register_dependency(image, bom.components)
    return dict(json.loads(JsonV1Dot6(bom).output_as_string()))


def contents_of_bill(bill: Mapping[str, Any]) -> Contents:
    """Return the packages that a bill lists."""
    components = [one for one in bill.get("components") or [] if isinstance(one, dict)]
    of: dict[str, dict[str, str]] = {"pypi": {}, "deb": {}}
    for one in components:
        kind = str(one.get("purl")).removeprefix("pkg:").partition("/")[0]
        of.setdefault(kind, {})[str(one.get("name"))] = str(one.get("version"))
    return Contents(of["pypi"], of["deb"])


def _read(stream: IO[bytes], name: str, image: Image) -> bytes:
    content = stream.read(LARGEST_READ + 1)
    if len(content) > LARGEST_READ:
        raise UserError(f"{image.id}: /{safe_text(name)} has more than {LARGEST_READ} bytes; do not trust it")
    return content


def _field(name: str, metadata: bytes) -> str:
    """Return the value of a field of a Python package; "None" where there is none, or it is longer than any real one.

    The metadata is not parsed: of eight megabytes of other fields, a parser would make a gigabyte of objects.
    """
    found = re.search(rb"^%s:[ \t]*([!-~]{1,200})[ \t\r]*$" % name.encode(), metadata, re.IGNORECASE | re.MULTILINE)
    return found[1].decode() if found else "None"


def _paragraphs(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = text.find("\n\n", begin)
        end = len(text) if end < 0 else end
        yield text[begin:end]
        begin = end + 2


def _installed(status: str) -> Iterable[tuple[str, str]]:
    for paragraph in _paragraphs(status):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            yield fields["Package"], fields["Version"]
