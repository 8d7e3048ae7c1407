"""The rows of the kit in the order in which they run: the most valuable first, those that break the GPU last."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.probes.check import Check

CHECKS = "benchmarks.gpu_evidence.checks"
CALL = "benchmarks.gpu_evidence.call:call"


@dataclass(frozen=True)
class Row:
    """A row: its function is `module:function` of the checks, called with a Site, the Kit and `arguments`.

    `probe`: a check of `vpoc probe` that is run instead of the function.
    `needs_gpu`: whether the row makes no sense on a CPU.
    `shown_red`: whether a test plants a fault in the code that the row judges, and sees that the row differs.
    `destructive`: whether the row crashes a process or the GPU.
    `long`: whether the row takes minutes even on a GPU.
    """

    name: str
    shows: str
    limit_s: float
    function: str
    arguments: tuple[str, ...] = ()
    probe: Check | None = None
    needs_gpu: bool = False
    shown_red: bool = True
    destructive: bool = False
    long: bool = False

    def check(self, *given: str) -> Check:
        """Return the row as a check that the app can run; `given` are the arguments that every row gets."""
        return self.probe or Check(self.name, self.shows, self.limit_s, CALL, (self.name, *given))


def _models() -> tuple[Row, ...]:
    kinds, dtypes, loops = (
        ("mlp", "attention", "attention-small"),
        ("float32", "float16", "bfloat16"),
        ("plain", "resident"),
    )
    return tuple(
        Row(
            f"train-{kind}-{dtype}-{loop}",
            f"{kind} in {dtype}, {loop} loop: first steps and course of the loss are the CPU's",
            300,
            f"{CHECKS}.numbers:trained",
            (kind, dtype, loop),
        )
        for kind in kinds
        for dtype in dtypes
        for loop in loops
    )


def _probe(check: Check) -> Row:
    # On a CPU, checks between several devices and checks of a library for GPUs have nothing to do.
    alone = check.name in ("peer-copy", "data-parallel", "hipblaslt-shape")
    return Row(
        f"probe-{check.name}",
        check.shows,
        check.limit_s,
        "",
        probe=check,
        needs_gpu=alone,
        long=check.name == "compile",
        shown_red=check.name in PROBES_SHOWN_RED,
    )


PROBES_SHOWN_RED = (
    *("copy", "allocate", "matmul-fp32", "matmul-fp16", "matmul-bf16", "addmm", "convolution"),
    *("attention-forward", "attention-backward", "optimizer-step", "compile", "all-reduce", "fragmented"),
)
"""The checks of `vpoc probe` in which the kit's tests plant a fault."""

DEVICE_PATHS = ("naive", "chunked", "preallocated", "pooled")
BY_WORTH = (
    *(
        "environment",
        "probe-import",
        "probe-device",
        "probe-allocate",
        "probe-copy",
        "probe-matmul-fp32",
        *(f"profile-{path}" for path in DEVICE_PATHS),
    ),
    *("train-mlp-*", "train-attention-float32-plain", "train-attention-float16-plain", "speed-256", "one-rank"),
    *("memory-monitor", "micro-batch", "resume-*", "deterministic-*", "matrix-run-quick", "sdpa-*", "train-*"),
    *("ddp", "fsdp", "two-processes", "loader-workers", "checkpoint", "probe-[!c]*", "probe-convolution"),
    *("profile-speed", "speed-*", "probe-compile", "matrix-run-standard", "*"),
)
"""Patterns of names: a row runs at the place of the first pattern that matches its name."""

ALL_ROWS: tuple[Row, ...] = (
    Row(
        "environment",
        "the app names the device and its memory as the driver does",
        120,
        f"{CHECKS}.environment:compare_facts",
    ),
    *(_probe(check) for check in ALL_CHECKS if check.name != "compile"),
    *(
        Row(
            f"profile-{path}",
            f"levels along the path {path} are exactly those of the CPU",
            120,
            f"{CHECKS}.profiles:path",
            (path,),
        )
        for path in DEVICE_PATHS
    ),
    *_models(),
    *(
        Row(
            f"sdpa-{backend}-{dtype}",
            f"attention by {backend} in {dtype} is what torch really calls",
            120,
            f"{CHECKS}.numbers:sdpa",
            (backend, dtype),
            needs_gpu=backend == "efficient",
            shown_red=backend != "efficient",
        )
        for backend in ("auto", "math", "flash", "efficient")
        for dtype in ("float32", "float16")
    ),
    Row(
        "resume-plain",
        "a resumed training ends bitwise as one that was not stopped",
        180,
        f"{CHECKS}.numbers:resumed",
        ("plain", "float32"),
    ),
    Row(
        "resume-resident", "the same with the resident loop", 180, f"{CHECKS}.numbers:resumed", ("resident", "float32")
    ),
    Row(
        "resume-float16", "the same in float16 with its scaler", 180, f"{CHECKS}.numbers:resumed", ("plain", "float16")
    ),
    *(
        Row(
            f"deterministic-{kind}-{dtype}",
            f"two trainings of {kind} in {dtype} with --deterministic are bitwise identical",
            240,
            f"{CHECKS}.numbers:deterministic",
            (kind, dtype),
        )
        for kind, dtype in (("mlp", "float32"), ("attention-small", "float32"), ("attention-small", "float16"))
    ),
    Row("memory-monitor", "the memory that is taken is what monitor and driver see", 120, f"{CHECKS}.memory:monitored"),
    Row(
        "micro-batch",
        "the largest micro-batch is found where memory really ends, and leaves some to spare",
        300,
        f"{CHECKS}.memory:micro_batch",
        ("attention",),
    ),
    Row(
        "one-rank",
        "the collective library starts, sums and ends with one rank and its device",
        120,
        f"{CHECKS}.ranks:one_rank",
    ),
    Row("ddp", "one rank of ddp trains what one device does", 120, f"{CHECKS}.ranks:wrapped", ("ddp",)),
    Row("fsdp", "one rank of fsdp trains what one device does", 120, f"{CHECKS}.ranks:wrapped", ("fsdp",)),
    Row(
        "two-processes",
        "two processes on one device, over gloo, train what one does",
        180,
        f"{CHECKS}.ranks:two_processes",
    ),
    Row(
        "loader-workers",
        "loader workers beside a device in use bring the same batches",
        120,
        f"{CHECKS}.numbers:workers",
    ),
    Row(
        "checkpoint",
        "a checkpoint of the attention model: what it costs, and that it is read back as written",
        120,
        f"{CHECKS}.numbers:checkpoints",
        ("attention",),
    ),
    *(
        Row(
            f"speed-{batch}",
            f"samples per second at batch {batch}: plain and resident beside other loops",
            240,
            f"{CHECKS}.speed:loops",
            (str(batch),),
        )
        for batch in (256, 8, 8192)
    ),
    Row(
        "profile-speed",
        "sessions per second along each path, beside the speed of the memory",
        120,
        f"{CHECKS}.profiles:speed",
    ),
    *(_probe(check) for check in ALL_CHECKS if check.name == "compile"),
    Row(
        "matrix-run-quick",
        "`matrix run` of the workload quick in the stack host completes",
        300,
        f"{CHECKS}.harness_run:workload",
        ("quick",),
        long=True,
    ),
    Row(
        "matrix-run-standard",
        "`matrix run` of the workload standard in the stack host completes",
        600,
        f"{CHECKS}.harness_run:workload",
        ("standard",),
        long=True,
    ),
    *(
        Row(kind, shows, 180, f"{CHECKS}.breaking:broken", (kind,), needs_gpu=True, shown_red=False, destructive=True)
        for kind, shows in (
            ("device-assert", "a kernel's assertion: the process ends, the log is explained, the GPU works afterwards"),
            ("illegal-access", "a kernel that touches memory not its own: the same"),
            ("endless-kernel", "a kernel that never ends: the process can be killed, the GPU works afterwards"),
        )
    ),
)


def _worth(row: Row) -> int:
    return next(place for place, pattern in enumerate(BY_WORTH) if fnmatchcase(row.name, pattern))


ROWS = tuple(sorted(ALL_ROWS, key=_worth))


def row_named(name: str) -> Row:
    """Return the row of that name; KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
