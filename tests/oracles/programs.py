"""Run AMD's programs on a simulated host, with their own libraries and with the driver's paths redirected to it."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.environments.compiled_kernel import fetched_compiler
from tests.oracles.packages import LIBRARIES

HERE = Path(__file__).parent
TARGET = ("-target", "x86_64-linux-gnu.2.17")
# Far more than any program takes, in seconds; a program that waits for a missing device would wait for ever.
SECONDS = 120
# The programs that hipcc runs.
TOOLS = (
    "clang",
    "clang++",
    "lld",
    "ld.lld",
    "clang-offload-bundler",
    "clang-linker-wrapper",
    "llvm-objcopy",
    "offload-arch",
    "amdgpu-arch",
)
# Root may open every file; without its capabilities, root is bound by file modes too.
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@dataclass(frozen=True)
class Programs:
    """Debian's packages, unpacked, and the compiled libraries that are loaded between the programs and the kernel."""

    root: Path
    redirect: Path
    kfd: Path
    tools: Path

    def rocminfo(self, host: Path, *, driver_answers: bool = False) -> str:
        """Return what rocminfo prints on a host."""
        return self._run(host, [self.root / "usr/bin/rocminfo"], self.kfd if driver_answers else None)

    def amd_smi(self, host: Path, command: str) -> str:
        """Return what a command of amd-smi prints on a host."""
        return self._run(host, [*self._python, self.root / "usr/libexec/amdsmi_cli/amdsmi_cli.py", command])

    def links(self, host: Path) -> str:
        """Return the links between the nodes of a host as AMD's runtime reads them."""
        return self._run(host, [*self._python, HERE / "links.py"], self.kfd)

    def hip_devices(self, host: Path) -> str:
        """Return HIP's answer to a program that counts the devices of a host."""
        return self._run(host, [*self._python, HERE / "count_hip_devices.py"])

    def hipcc(self, host: Path, *words: str | Path) -> str:
        """Return what AMD's compiler prints, run on a host with its clang, headers and code for devices."""
        llvm, usr = self._llvm, self.root / "usr"
        (clang,) = (llvm / "lib/clang").iterdir()
        gcc = max((usr / "lib/gcc/x86_64-linux-gnu").iterdir(), key=lambda place: int(place.name))
        # With -no-canonical-prefixes, clang starts its parts through the scripts in `tools`, where its own script is.
        places: list[str | Path] = [
            "-no-canonical-prefixes",
            "-resource-dir",
            clang,
            f"--sysroot={self.root}",
            f"--gcc-install-dir={gcc}",
        ]
        known = {"HIP_CLANG_PATH": self.tools, "ROCM_PATH": usr, "HIP_PATH": usr}
        variables = {name: str(value) for name, value in known.items()}
        command: list[str | Path] = [
            *self._loader(),
            usr / "bin/hipcc",
            *places,
            f"-L{self.root / LIBRARIES}",
            "-fuse-ld=lld",
            *words,
        ]
        return _output(host, command, variables | {"HIP_DEVICE_LIB_PATH": str(clang / "amdgcn/bitcode")})

    def run_compiled(self, host: Path, program: Path) -> str:
        """Return the output of a program that was compiled for a host."""
        return self._run(host, [program])

    def jax_devices(self, host: Path, python: Path, platforms: str = "") -> str:
        """Return what JAX prints when it is asked for its devices on a host."""
        variables = {"LD_PRELOAD": str(self.redirect), "JAX_PLATFORMS": platforms}
        return _output(host, [python, "-c", "import jax; print(jax.devices())"], variables)

    def wrap_tools(self) -> None:
        """Write a script for each program of LLVM that starts it with its own libraries."""
        self.tools.mkdir()
        for name in TOOLS:
            script, tool = self.tools / name, self._llvm / "bin" / name
            words = [*self._loader(self.redirect, argv0=script), tool]
            script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n', encoding="utf-8")
            script.chmod(0o755)

    @property
    def _llvm(self) -> Path:
        return max((self.root / "usr/lib").glob("llvm-*"))

    def _loader(self, *preloaded: Path, argv0: Path | None = None) -> list[str | Path]:
        """Return the words that start a program with the libraries of the root folder."""
        libraries = self.root / LIBRARIES
        words: list[str | Path] = [libraries / "ld-linux-x86-64.so.2"]
        words += ["--preload", ":".join(map(str, preloaded))] if preloaded else []
        words += ["--argv0", argv0] if argv0 else []
        return [*words, "--library-path", f"{libraries}:{self._llvm / 'lib'}"]

    @property
    def _python(self) -> Sequence[str | Path]:
        return (min((self.root / "usr/bin").glob("python3.[0-9]*")), "-B")

    def _run(self, host: Path, command: Sequence[str | Path], *preloaded: Path | None) -> str:
        loader = self._loader(self.redirect, *(library for library in preloaded if library))
        dropped = WITHOUT_CAPABILITIES if os.geteuid() == 0 else ()
        return _output(host, [*dropped, *loader, *command], {"PYTHONHOME": str(self.root / "usr")})


def made(root: Path, place: Path) -> Programs:
    """Compile the libraries that redirect the programs of a root into a folder, and return the programs."""
    programs = Programs(root, place / "redirect.so", place / "kfd.so", place / "llvm")
    programs.wrap_tools()
    compiler = shutil.which("cc")
    if compiler:
        _compile([compiler], programs)
    else:
        with fetched_compiler() as zig:
            _compile([str(zig), "cc", *TARGET], programs)
    return programs


def _compile(compiler: Sequence[str], programs: Programs) -> None:
    headers = programs.root / "usr/include"
    # KFD's header includes DRM's header through the folder name that the kernel uses.
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
