"""A package index on loopback that stands in for every kind of source of wheels, and a TLS authority for it.

- `/rocm6.3/` and `/rocm7.14/` answer as PyTorch's index does, with hashes on their pages.
- `/amd/` answers as AMD's does: no hashes on its pages, and 403 for packages that it does not have.
- `/folder/` answers with a page that lists files, `/pypi/` as PyPI does.

All of them can also be written to a folder and read by file:// URLs.
"""

import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.rehearsal.packages import ANY, rocm_packages, stub_wheel
from harness.rehearsal.stand_in_index import FORBIDDEN, SourceContent, StandIn, index_page, project_of, serving

TORCH = "cp311-cp311-manylinux_2_28_x86_64"
TARGETS = ("gfx1100", "gfx1201")


def places() -> dict[str, SourceContent]:
    """Return the content of each place, by its path."""
    amd = "2.12.0+rocm7.14.0"
    device = [f"amd-torch-device-{target}=={amd}; extra == 'device-{target}'" for target in TARGETS]
    of_amd = ["rocm[libraries]==7.14.0", "triton==3.7.1+rocm7.14.0", "numpy", *device]
    inside = (
        stub_wheel("torch", "2.9.1+rocm6.3", ["pytorch-triton-rocm==3.5.1", "numpy"], TORCH),
        stub_wheel("pytorch-triton-rocm", "3.5.1", tag=TORCH),
        stub_wheel("torchvision", "0.24.1+rocm6.3", ["torch==2.9.1", "numpy"], TORCH),
        # PyTorch's real index also holds an old copy of a package that belongs to another project.
        stub_wheel("numpy", "1.0", tag=ANY),
    )
    packages = (
        stub_wheel("torch", "2.14.0+rocm7.14", ["rocm[device-all,libraries]==7.14.*", "triton-rocm==3.8.0"], TORCH),
        stub_wheel("triton-rocm", "3.8.0", tag=TORCH),
        *rocm_packages("7.14.0", TARGETS),
    )
    of_amds_index = (
        stub_wheel("torch", amd, of_amd, TORCH),
        stub_wheel("triton", "3.7.1+rocm7.14.0", tag=TORCH),
        stub_wheel("amd-torch-device-gfx11", amd, tag=TORCH),
        *(
            stub_wheel(f"amd-torch-device-{target}", amd, [f"rocm-sdk-device-{target}==7.14.0"], TORCH)
            for target in TARGETS
        ),
        *rocm_packages("7.14.0", TARGETS),
    )
    pypi = (
        *(stub_wheel(name, "2.0") for name in ("numpy", "polars", "click", "matplotlib")),
        # Built against PyPI's torch.
        stub_wheel("torchvision", "0.24.1", ["torch==2.9.1", "numpy"]),
        # Packages of other projects that happen to have AMD's names.
        stub_wheel("rocm", "7.14.99"),
        stub_wheel("rocm-sdk-core", "7.14.0"),
        stub_wheel("triton", "3.7.1"),
    )
    in_folder = stub_wheel("torch", "2.6.0+rocm6.4.2.git76481f7c", ["numpy"], "cp312-cp312-linux_x86_64")
    return {
        "rocm6.3": SourceContent(inside),
        "rocm7.14": SourceContent(packages),
        "amd": SourceContent(of_amds_index, hashed=False, missing=FORBIDDEN),
        "folder": SourceContent((in_folder,), folder=True),
        "pypi": SourceContent(pypi),
    }


def write_mirror(places: Mapping[str, SourceContent], folder: Path) -> None:
    """Write every place as a folder of pages and files, for file:// URLs."""
    for place, has in places.items():
        for name in {project_of(file) for file, _ in has.files}:
            mine = [(file, content) for file, content in has.files if project_of(file) == name]
            (folder / place / name).mkdir(parents=True)
            for file, content in mine:
                (folder / place / name / file).write_bytes(
                    content.read_bytes() if isinstance(content, Path) else content
                )
            (folder / place / name / "index.html").write_text(index_page(mine, hashed=True), encoding="utf-8")


def private_authority(folder: Path) -> Path:
    """Write an authority of our own and, beside it, a certificate for 127.0.0.1 with its key; return the authority."""
    authority, key = folder / "authority.pem", folder / "authority.key"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    # Python 3.13 refuses an authority whose certificate does not state the usage of its key.
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
    """Serve the stand-in on loopback, over TLS if a private authority is given."""
    context = None
    if authority:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authority.with_name("server.pem"), authority.with_name("server.key"))
    with serving(places(), context) as server:
        yield server
