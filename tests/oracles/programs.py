"""Runs AMD's programs on a simulated host: with their own libraries, and the driver's paths redirected to it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.environments.compiled_kernel import fetched_compiler
from tests.oracles.packages import LIBRARIES

HERE = Path(__file__).parent
TARGET = ("-target", "x86_64-linux-gnu.2.17")
# Far more than any of them takes; one that waits for a device that does not exist would wait for ever.
SECONDS = 120
# Root may open everything: without its capabilities a mode counts for it, too.
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@dataclass(frozen=True)
class Programs:
    """Debian's packages, unpacked, and the compiled libraries that stand between them and the kernel."""

    root: Path
    redirect: Path
    kfd: Path

    def rocminfo(self, host: Path, *, driver_answers: bool = False) -> str:
        """Return what rocminfo prints of a host."""
        return self._run(host, [self.root / "usr/bin/rocminfo"], self.kfd if driver_answers else None)

    def amd_smi(self, host: Path, command: str) -> str:
        """Return what a command of amd-smi prints of a host."""
        return self._run(host, [*self._python, self.root / "usr/libexec/amdsmi_cli/amdsmi_cli.py", command])

    def hip_devices(self, host: Path) -> str:
        """Return what HIP answers to a program that counts the devices of a host."""
        return self._run(host, [*self._python, HERE / "count_hip_devices.py"])

    def jax_devices(self, host: Path, python: Path, platforms: str = "") -> str:
        """Return what JAX prints that is asked for its devices on a host."""
        variables = {"LD_PRELOAD": str(self.redirect), "JAX_PLATFORMS": platforms}
        return _output(host, [python, "-c", "import jax; print(jax.devices())"], variables)

    @property
    def _python(self) -> Sequence[str | Path]:
        return (min((self.root / "usr/bin").glob("python3.[0-9]*")), "-B")

    def _run(self, host: Path, command: Sequence[str | Path], *preloaded: Path | None) -> str:
        libraries = self.root / LIBRARIES
        preload = ":".join(str(library) for library in (self.redirect, *preloaded) if library)
        loader: list[str | Path] = [libraries / "ld-linux-x86-64.so.2", "--preload", preload]
        loader += ["--library-path", libraries]
        dropped = WITHOUT_CAPABILITIES if os.geteuid() == 0 else ()
        return _output(host, [*dropped, *loader, *command], {"PYTHONHOME": str(self.root / "usr")})


def made(root: Path, place: Path) -> Programs:
    """Compile what stands between the programs of a root and the kernel, into a folder; return the programs."""
    programs = Programs(root, place / "redirect.so", place / "kfd.so")
    compiler = shutil.which("cc")
    if compiler:
        _compile([compiler], programs)
    else:
        with fetched_compiler() as zig:
            _compile([str(zig), "cc", *TARGET], programs)
    return programs


def _compile(compiler: Sequence[str], programs: Programs) -> None:
    headers = programs.root / "usr/include"
    # KFD's header includes the one of DRM by the name that the kernel gives its folder.
    (programs.redirect.parent / "drm").symlink_to(headers / "libdrm")
    system = [f"-isystem{place}" for place in (programs.redirect.parent, headers, headers / "x86_64-linux-gnu")]
    for library in (programs.redirect, programs.kfd):
        source = HERE / f"{library.stem}.c"
        options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *system]
        subprocess.run([*compiler, *options, "-o", str(library), str(source), "-ldl"], check=True)


def _output(host: Path, command: Sequence[str | Path], variables: dict[str, str]) -> str:
    run = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "SIMULATED_ROOT": str(host), **variables},
    )
    return run.stdout
