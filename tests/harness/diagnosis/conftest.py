"""Fixtures for the tests of the diagnosis: log lines as programs and the kernel really print them."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from harness.base.files.yaml_lines import read_yaml
from harness.evidence.files.run_files import Explanation
from tests.harness.diagnosis.in_memory import explain_log

# Lines that healthy programs print; N stands for a number, H for an address, W for a word.
NOISE = """\
epoch N/N: training loss 0.N, validation loss 0.N, accuracy 0.N
step N of N, loss 0.N, gradient norm 0.N, N.N samples/s, lr 1e-N
2026-11-20 10:N:N,N INFO trainer: step N, loss=0.N, no errors so far
[rank0]: I1120 10:N:N.N N torch/_dynamo/utils.py:1162] [0/0] step took 0.N s
 N%|####      | N/N [00:N<01:N, N.Nit/s, loss=0.N, memory=N.N GiB]
Collecting torch==2.9.1+rocm6.3
  Downloading https://download.pytorch.org/whl/rocm6.3/torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl (4800.N MB)
     |################################| 4800.N/4800.N MB N.N MB/s eta 0:00:00
Requirement already satisfied: numpy>=1.26 in /opt/venv/lib/python3.11/site-packages (from W) (2.4.N)
Successfully installed W-N.N errorhandler-2.0.N exceptiongroup-1.3.N
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
DEPRECATION: W is being installed using the legacy method. pip 25.3 will enforce this behaviour change.
WARNING: Running pip as the 'root' user can result in broken permissions and conflicting behaviour.
WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'ReadTimeoutError("Read timed out.")': /W/
Step N/N : RUN pip install --no-cache-dir W
 ---> Running in 5d1bN
#N [internal] load build definition from Dockerfile
#N extracting sha256:N 0.Ns done
#N CACHED
Removing intermediate container N
Get:N http://deb.debian.org/debian bookworm/main amd64 libgcc-12-dev amd64 12.2.0-N [2437 kB]
Setting up W (N.N-N) ...
/opt/venv/lib/python3.11/site-packages/torch/nn/modules/transformer.py:N: UserWarning: enable_nested_tensor is False
  warnings.warn(f"enable_nested_tensor is True, but self.use_nested_tensor is False because {why}")
/opt/venv/lib/python3.11/site-packages/W.py:N: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.
W1120 10:N:N.N N torch/distributed/run.py:792] *****************************************
[W1120 10:N:N.N socket.cpp:N] [c10d] The client socket has failed to connect to [W]:N (errno: N - Connection refused).
[W1120 10:N:N.N ProcessGroupNCCL.cpp:N] Warning: WARNING: barrier() called without device_ids
rig:N:N [N] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
rig:N:N [N] NCCL INFO comm 0xH rank N nranks 2 cudaDev N busId 3000 - Init COMPLETE
MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1100_48.kdb Performance may degrade.
MIOpen(HIP): Info [FindSolutionImpl] W
GPU N: AMD Radeon RX 7900 XT, total_memory=20464MB, gfx1100, out of N
allocated N.N GiB, reserved N.N GiB, out of 19.98 GiB
torch.cuda.is_available() True, torch.version.hip 6.3.N, HIP_VISIBLE_DEVICES=
PYTORCH_HIP_ALLOC_CONF=max_split_size_mb:512 TORCH_BLAS_PREFER_HIPBLASLT=0 HSA_ENABLE_SDMA=0
  0%|          | 0/N [00:00<?, ?it/s]
saving checkpoint W-N.pt ... done, no failure
Early stopping counter: N out of N
restored best weights; mean absolute error 0.N, relative error N.N
validation: KeyError handling, timeout and memory tests passed
loaded module 'W' from /opt/W, N tensors, size N
wandb: Network error (ReadTimeout), entering retry loop.
wandb: ERROR Error while calling W&B API: internal database error (<Response [500]>)
Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to N.N
LOG_LEVEL=INFO errors=0 failures=0 killed=0 aborted=0
Traceback logging is on; faulthandler is armed
Process group of 2 ranks is up; waiting for batch N
def handle(error): return f"failed to {error}"
Docker version 27.N.N, build N
train-1 exited with code 0
Process finished with exit code 0
torchvision 0.N requires torch==2.0.1, but you have torch 2.9.1+rocm6.3 which is incompatible.
Some weights of W were not initialized from the model checkpoint and are newly initialized: ['classifier.bias']
rig:N:N [N] /rccl/src/init.cc:1 NCCL WARN NUMA auto balancing enabled which can lead to variability!
rig:N:N [N] NCCL INFO Failed to open libibverbs.so[.1]
2026-11-20 10:N:N.1: E external/local_xla/cuda_fft.cc:N] Unable to register cuFFT factory
UserWarning: Can't initialize amdsmi - Error code: N
torch.cuda.memory_summary: CUDA OOMs: 0            |        cudaMalloc retries: 0
step N: micro batch auto: N was too large, N fits
[W 2026-11-20 10:N:N,N] Trial N failed with parameters: {'lr': 0.1} because of the following error: ValueError('W').
{"level": "info", "msg": "container died", "OOMKilled": false, "exitCode": 0}
[    N.N] amdgpu 0000:03:00.0: amdgpu: VRAM: 20464M 0x0000008000000000 - 0x00000084FEFFFFFF (20464M used)
[    N.N] amdgpu 0000:03:00.0: amdgpu: SMU is initialized successfully!
[    N.N] [drm] Initialized amdgpu 3.57.0 for 0000:03:00.0 on minor N
[    N.N] amdgpu: Topology: Add dGPU node [0x744c:0x1002]
[    N.N] usb 1-N: new high-speed USB device number N using xhci_hcd
[    N.N] audit: type=1400 audit(N.N:N): apparmor="STATUS" operation="profile_load"
[    N.N] nvme nvme0: N/0/0 default/read/poll queues
""".splitlines()

BENIGN = [
    "/x/torch/nn/modules/linear.py:125: UserWarning: Attempting to use hipBLASLt on an unsupported architecture! "
    "Overriding blas backend to hipblas (Triggered internally at ../aten/src/ATen/Context.cpp:296.)",
    'rig:77:77 [0] /root/rccl/src/init.cc:88 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to '
    "system instablity or hang!",
    "[W1120 10:00:00.1 HIPAllocatorConfig.h:29] Warning: expandable_segments not supported on this platform (function)",
    "/x/attention.py:9: UserWarning: Flash attention support on Navi31 GPU is still experimental. Enable it with "
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1. (Triggered internally at sdp_utils.cpp:225.)",
    "Mem Efficient attention support on Navi31 GPU is still experimental.",
    "/opt/amdgpu/share/libdrm/amdgpu.ids: No such file or directory",
    "[W] PYTORCH_HIP_ALLOC_CONF is deprecated, use PYTORCH_ALLOC_CONF instead",
    "rocBLAS warning: hipBlasLT failed, falling back to tensile. ",
    "MIOpen(HIP): Warning [IsEnoughWorkspace] [GetSolutionsFallback WTI] Solver <GemmFwdRest>, workspace required: 1",
    "[rank0]:[W1120 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called, "
    "process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
    "ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): "
    "ignored.",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
    "overloaded, please further tune the variable for optimal performance in your application as needed.",
    "rig:77:77 [0] NCCL INFO NET/Plugin : dlerror=librccl-net.so: cannot open shared object file",
    'time=2025-02-11T18:21:07.123+01:00 level=INFO source=server.go:594 msg="no kernel image is available, so CPU"',
    "'(ReadTimeoutError(\"HTTPSConnectionPool(host='x', port=443): Read timed out.\"), '(Request ID: 1)')' thrown "
    "while requesting HEAD https://x/config.json",
    ":3:hip_memory.cpp           :4012: 15012345690 us: [pid:4711  tid:0x7f1c2b000000] hipPointerGetAttributes: "
    "Returned hipErrorInvalidValue :",
    "HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.",
    "CUDA kernel errors might be asynchronously reported at some other API call,so the stacktrace below might be "
    "incorrect.",
    "For debugging consider passing AMD_SERIALIZE_KERNEL=3",
    "Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.",
    "Device-side assertion tracking was not enabled by user.",
    "RuntimeError: Error running command.",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    "mce: [Hardware Error]: Machine check events logged",
    "[   54.0] amdgpu 0000:03:00.0: ring gfx_0.0.0 timeout, but soft recovered",
    "[   55.0] amdgpu 0000:03:00.0: amdgpu: 0 uncorrectable hardware errors detected in total in gfx block, no user "
    "action is needed",
    "UserWarning: bgemm_internal_cublaslt error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul with "
    "transpose_mat1 1 Will attempt to recover by calling cublas instead. (Triggered internally at HIPBlas.cpp:400.)",
]


# Matches a line of the kernel log: it begins with its time, or as a driver begins its lines.
KERNEL_LINE = re.compile(
    r"\[(?: *\d+\.\d+| *\+\d+\.\d+|\w{3} ?\d+ \d\d:\d\d)\] |.{1,60} kernel: |\w{3} +\d+ [\d:]{8} \S+ systemd-oomd\["
    r"|amdgpu [\da-f:.]+: |\[drm|kfd kfd: |pcieport "
)


@dataclass(frozen=True)
class Excerpt:
    """Lines of a log, of the kernel's if the first looks like one, with the expected rule (None: none) and class."""

    lines: tuple[str, ...]
    rule: str | None
    class_: str
    gpu: str | None
    row: int | None
    rocm: str | None
    torch: str | None

    @property
    def kernel(self) -> bool:
        """True if the excerpt is from the kernel log."""
        return KERNEL_LINE.match(self.lines[0]) is not None

    @property
    def quotes_kernel(self) -> bool:
        """True if one of its lines is from the kernel log."""
        return any(map(KERNEL_LINE.match, self.lines))

    def explain(self, before: list[str], after: list[str]) -> Explanation:
        """Return the explanation of the excerpt between other lines."""
        lines = [*before, *self.lines, *after]
        log, kernel = ([], lines) if self.kernel else (lines, [])
        return explain_log(log, "train.log", kernel, self.rocm, self.torch)


@pytest.fixture(scope="session")
def excerpts() -> list[Excerpt]:
    """Return all excerpts."""
    rows = read_yaml(Path(__file__).with_name("excerpts.yaml")).data
    return [
        Excerpt(
            lines=tuple(row["text"].rstrip("\n").split("\n")),
            rule=row["rule"],
            class_=row["class"],
            gpu=row.get("gpu"),
            row=row.get("row"),
            rocm=row.get("rocm"),
            torch=row.get("torch"),
        )
        for row in rows
    ]


@pytest.fixture(scope="session")
def warnings() -> list[str]:
    """Return warnings that do not point to a failure."""
    return BENIGN


@pytest.fixture(scope="session")
def noise() -> Callable[[int, int], list[str]]:
    """Return a function that makes a number of lines as healthy programs print them, by a seed."""

    @cache
    def lines(count: int, seed: int) -> list[str]:
        chance = random.Random(seed)
        return [_filled(chance.choice(NOISE), chance) for _ in range(count)]

    return lines


def _filled(template: str, chance: random.Random) -> str:
    words = ("data", "trainer", "model", "polars", "libdrm", "volume", "profile")
    text = "".join(str(chance.randrange(1000)) if letter == "N" else letter for letter in template)
    return text.replace("0xH", f"0x{chance.randrange(1 << 40):x}").replace("/W", f"/{chance.choice(words)}")
