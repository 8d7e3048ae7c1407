"""A package index on loopback that stands in for every kind of source of wheels, with files of a few hundred bytes.

It answers as the real ones do: `/rocm6.3/` and `/rocm7.14/` as PyTorch's index (with hashes on its pages), `/amd/` as
AMD's (none on its pages, and 403 for what it does not hold), `/folder/` as a page that lists files, `/pypi/` as PyPI.
It can break off, and can be copied into a folder to be read by file:// URLs.
"""

import hashlib
import io
import re
import ssl
import subprocess
import tarfile
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from zipfile import ZIP_STORED, ZipFile, ZipInfo

FOUND, FORBIDDEN, MISSING = 200, 403, 404
TORCH = "cp311-cp311-manylinux_2_28_x86_64"
LINUX = "py3-none-linux_x86_64"
ANY = "py3-none-any"

File = tuple[str, bytes]


def wheel(
    name: str, version: str, requires: Iterable[str] = (), tag: str = ANY, modules: Mapping[str, str] | None = None
) -> File:
    """Return the file name and the bytes of a wheel; extras are those that `requires` names."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    extras = sorted({extra for text in requires for extra in re.findall(r"extra == '([^']+)'", text)})
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires] + [f"Provides-Extra: {extra}" for extra in extras]
    files = {f"{module}/__init__.py": f"__version__ = {version!r}\n", **(modules or {})}
    files |= {f"{info}/METADATA": "\n".join(lines) + "\n", f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n"}
    listed = [f"{path},," for path in (*files, f"{info}/RECORD")]
    files[f"{info}/RECORD"] = "\n".join(listed) + "\n"
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_STORED) as archive:
        for path, text in files.items():
            archive.writestr(ZipInfo(path), text)
    return f"{module}-{version}-{tag}.whl", stream.getvalue()


def source_package(name: str, version: str, requires: Iterable[str]) -> File:
    """Return a source package that brings what builds it, and so needs no network to be built."""
    made, content = wheel(name, version, requires, modules={"rocm_sdk/__init__.py": "SDK = True\n"})
    backend = f"""
import base64, pathlib, zipfile, io
WHEEL = base64.b64decode({b64encode(content)!r})
def build_wheel(folder, config_settings=None, metadata_directory=None):
    pathlib.Path(folder, {made!r}).write_bytes(WHEEL)
    return {made!r}
"""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", stream.getvalue()


TARGETS = ("gfx1100", "gfx1201")


def rocm_packages(version: str) -> list[File]:
    """Return ROCm as pip packages: its core, libraries and device code, and the meta package as source."""
    device = [f"rocm-sdk-device-{target}=={version}; extra == 'device-{target}'" for target in TARGETS]
    device += [f"rocm-sdk-device-{target}=={version}; extra == 'device-all'" for target in TARGETS]
    requires = [f"rocm-sdk-core=={version}", f"rocm-sdk-libraries=={version}; extra == 'libraries'", *device]
    parts = ["core", "libraries", *(f"device-{target}" for target in TARGETS)]
    return [
        *(wheel(f"rocm-sdk-{part}", version, tag=LINUX) for part in parts),
        source_package("rocm", version, requires),
    ]


def contents() -> dict[str, list[File]]:
    """Return the files of each place."""
    amd = "2.12.0+rocm7.14.0"
    device = [f"amd-torch-device-{target}=={amd}; extra == 'device-{target}'" for target in TARGETS]
    of_amd = ["rocm[libraries]==7.14.0", "triton==3.7.1+rocm7.14.0", "numpy", *device]
    return {
        "rocm6.3": [
            wheel("torch", "2.9.1+rocm6.3", ["pytorch-triton-rocm==3.5.1", "numpy"], TORCH),
            wheel("pytorch-triton-rocm", "3.5.1", tag=TORCH),
            # As on the real one: an old copy of somebody else's package.
            wheel("numpy", "1.0", tag=ANY),
        ],
        "rocm7.14": [
            wheel("torch", "2.14.0+rocm7.14", ["rocm[device-all,libraries]==7.14.*", "triton-rocm==3.8.0"], TORCH),
            wheel("triton-rocm", "3.8.0", tag=TORCH),
            *rocm_packages("7.14.0"),
        ],
        "amd": [
            wheel("torch", amd, of_amd, TORCH),
            wheel("triton", "3.7.1+rocm7.14.0", tag=TORCH),
            wheel("amd-torch-device-gfx11", amd, tag=TORCH),
            *(
                wheel(f"amd-torch-device-{target}", amd, [f"rocm-sdk-device-{target}==7.14.0"], TORCH)
                for target in TARGETS
            ),
            *rocm_packages("7.14.0"),
        ],
        "folder": [wheel("torch", "2.6.0+rocm6.4.2.git76481f7c", ["numpy"], "cp312-cp312-linux_x86_64")],
        "pypi": [
            *(wheel(name, "2.0") for name in ("numpy", "polars", "click", "matplotlib")),
            # Somebody else's, under AMD's names.
            wheel("rocm", "7.14.99"),
            wheel("rocm-sdk-core", "7.14.0"),
            wheel("triton", "3.7.1"),
        ],
    }


def page(files: Iterable[File], *, hashes: bool) -> str:
    """Return the page of an index that lists files, beside which they are."""
    lines = []
    for name, content in files:
        mark = f"#sha256={hashlib.sha256(content).hexdigest()}" if hashes else ""
        lines.append(f'<a href="{quote(name)}{mark}">{name}</a><br>')
    return "<!DOCTYPE html><html><body>" + "\n".join(lines) + "</body></html>"


def project(file: str) -> str:
    """Return the normalized name of the project that a file is of."""
    name = re.sub(r"-\d.*$", "", file)
    return re.sub(r"[-_.]+", "-", name).lower()


class StandIn(ThreadingHTTPServer):
    """The server. `asked` are the paths that were asked for; `refuses` are places that answer 403 to everything."""

    def __init__(self, authority: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self._scheme = "https" if authority else "http"
        if authority:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(authority.with_name("server.pem"), authority.with_name("server.key"))
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.places = contents()
        self.asked: list[str] = []
        self.refuses: set[str] = set()

    def url(self, place: str) -> str:
        """The URL of a place."""
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}/{place}"

    def write(self, folder: Path) -> None:
        """Write every place as a folder of pages and files, for file:// URLs."""
        for place, files in self.places.items():
            for name in {project(file) for file, _ in files}:
                mine = [(file, content) for file, content in files if project(file) == name]
                (folder / place / name).mkdir(parents=True)
                for file, content in mine:
                    (folder / place / name / file).write_bytes(content)
                (folder / place / name / "index.html").write_text(page(mine, hashes=True), encoding="utf-8")


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer as to GET, without the content."""
        self._answer(with_content=False)

    def do_GET(self) -> None:
        """Answer with a page or a file."""
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        status, kind, content = self._found(server)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def _found(self, server: StandIn) -> tuple[int, str, bytes]:
        place, _, rest = unquote(self.path).strip("/").partition("/")
        files = server.places.get(place, [])
        nothing = FORBIDDEN if place == "amd" or place in server.refuses else MISSING
        if place in server.refuses:
            return nothing, "text/plain", b""
        file = next((content for name, content in files if name == rest.rpartition("/")[2]), None)
        if file is not None:
            return FOUND, "application/octet-stream", file
        mine = files if place == "folder" else [one for one in files if project(one[0]) == rest]
        if not mine:
            return nothing, "text/plain", b""
        return FOUND, "text/html", page(mine, hashes=place != "amd").encode()


def private_authority(folder: Path) -> Path:
    """Write an authority of our own, and beside it a certificate for 127.0.0.1 with its key; return the authority."""
    authority, key = folder / "authority.pem", folder / "authority.key"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    # Python 3.13 refuses an authority that does not say what its key is for.
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    for words in (
        [*new, "-x509", "-days", "2", "-subj", "/CN=an authority", *usage, "-out", str(authority), "-keyout", str(key)],
        [*new, "-subj", "/CN=127.0.0.1", "-out", str(folder / "server.csr"), "-keyout", str(folder / "server.key")],
    ):
        subprocess.run(words, check=True, capture_output=True)
    names = "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    (folder / "names").write_text(names, encoding="utf-8")
    sign = ["openssl", "x509", "-req", "-days", "2", "-in", str(folder / "server.csr"), "-CA", str(authority)]
    sign += [
        "-CAkey",
        str(key),
        "-CAcreateserial",
        "-extfile",
        str(folder / "names"),
        "-out",
        str(folder / "server.pem"),
    ]
    subprocess.run(sign, check=True, capture_output=True)
    return authority


@contextmanager
def served(authority: Path | None = None) -> Iterator[StandIn]:
    """Serve the stand-in on loopback, over TLS where there is a private authority."""
    server = StandIn(authority)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
