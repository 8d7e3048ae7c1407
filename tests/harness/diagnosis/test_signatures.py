"""Tests of the signatures on excerpts of logs as programs really write them."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.text import one_line
from harness.diagnosis.lines import as_lines
from harness.diagnosis.rules import load_signatures
from harness.diagnosis.scan import scan
from harness.host.gpus.kernel_resets import reset_lines
from harness.matrix.cells import Matrix
from tests.harness.diagnosis.in_memory import explain_log

Noise = Callable[[int, int], list[str]]
# Rows of the table of failures that leave a line in a log: row 49, a rendezvous that never returns, is in stacks only.
ROWS = set(range(1, 49))
# Words for things that exist, or have a meaning, only where there is a GPU.
ABOUT_GPUS = re.compile(
    r"\b(?:HSA|AMD|NCCL|HIP|ROC|PYTORCH)_[A-Z]|DMA|hardware queue|iommu|amdgpu|ROCm|GPU|kfd|hipBLAS|render node|driver"
)

# Words in a line of the kernel that show the state of a GPU, whatever else the line says.
SAYS_OF_A_GPU = {
    "reset": re.compile(
        r"(?i)reset|wedged|recovery|unrecoverable|(?<!fences )time(?:d )?[ -]?out|GPU hang|respon|\bMES\b"
        r"|gangs|quiesce|Failed to evict|(?:remove|legacy) queue|\bSMU\b|last message|halt cp|\bCTF\b"
    ),
    "lost": re.compile(
        r"(?i)uncorrect|\bbus\b(?! error: severity=corr)|inaccessible|power state"
        r"|Hardware Error|queue vital|resume KFD|restore process|\bfences\b"
    ),
    "faulted": re.compile(r"(?i)page.fault|protection_fault|command stream|sq_intr"),
    "unharmed": re.compile(
        r"(?i)out of memory|\boom\b|I/O error|firmware|ucode|\bmodule\b|atomic|segfault|blocked|memory pressure"
        r"|not enough memory|\bBUG\b|\bOops\b|panic|lockup|protection fault|WARNING: [Cd]|\bRIP\b|EXT4-fs|medium error"
        r"|during GPU init|hw_init|PSP create|BIOS|not supported|symbol|could not insert|modesetting disabled"
    ),
}

# Lines of the kernel about a healthy GPU, at boot and around a suspend.
HEALTHY = """\
[drm] amdgpu kernel modesetting enabled.
[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x744C 0x1EAE:0x7901 0xCC).
amdgpu: Virtual CRAT table created for CPU
amdgpu: Topology: Add CPU node
{gpu} enabling device (0006 -> 0007)
{gpu} Fetched VBIOS from VFCT
{gpu} Trusted Memory Zone (TMZ) feature not supported
{gpu} MEM ECC is not presented.
{gpu} SRAM ECC is not presented.
{gpu} vm size is 262144 GB, 4 levels, block size is 9-bit, fragment size is 9-bit
{gpu} GART: 512M 0x00007FFF00000000 - 0x00007FFF1FFFFFFF
[drm] Detected VRAM RAM=20464M, BAR=32768M
[drm] RAM width 320bits GDDR6
[drm] Loading DMUB firmware via PSP: version=0x07002F00
[drm] Found VCN firmware Version ENC: 1.24 DEC: 9 VEP: 0 Revision: 16
{gpu} reserve 0x1300000 from 0x84fc000000 for PSP TMR
{gpu} RAP: optional rap ta ucode is not available
{gpu} SECUREDISPLAY: securedisplay ta ucode is not available
{gpu} smu driver if version = 0x0000003d, smu fw if version = 0x00000040, smu fw version = 0x004e8000 (78.128.0)
{gpu} SMU driver if version not matched
{gpu} Will use PSP to load VCN firmware
[drm] DMUB hardware initialized: version=0x07002F00
kfd kfd: amdgpu: Allocated 3969056 bytes on gart
kfd kfd: amdgpu: Total number of KFD nodes to be created: 1
amdgpu: HMM registered 20464MB device memory
kfd kfd: amdgpu: added device 1002:744c
{gpu} SE 6, SH per SE 2, CU per SH 8, active_cu_number 84
{gpu} ring gfx_0.0.0 uses VM inv eng 0 on hub 0
{gpu} ring gfx_0.0.0 timeout, but soft recovered
{gpu} ring mes_kiq_3.1.0 uses VM inv eng 13 on hub 0
{gpu} Using BACO for runtime pm
{gpu} SMU is resuming...
{gpu} SMU is resumed successfully!
[drm] PCIE GART of 512M enabled (table at 0x00000084FEB00000).
[drm] PSP is resuming...
[drm] JPEG decode initialized successfully.
fbcon: amdgpudrmfb (fb0) is primary device
{gpu} Secure display: Generic Failure.
{gpu} SECUREDISPLAY: query securedisplay TA failed. ret 0x0
{gpu} [drm] REG_WAIT timeout 1us * 100000 tries - optc35_disable_crtc line:235
{gpu} [drm] *ERROR* No EDID read.
{gpu} Failed to setup vendor infoframe on connector HDMI-A-1: -22
""".splitlines()

# Lines of the kernel about other devices, with words that also occur in lines about GPUs.
OTHER_DEVICES = """\
usb 2-1: reset SuperSpeed USB device number 2 using xhci_hcd
xhci_hcd 0000:05:00.0: Host halt failed, -110; xHCI host controller not responding, assume dead
nvme nvme0: I/O tag 128 (1080) opcode 0x2 (I/O Cmd) QID 4 timeout, reset controller
ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen
ata1: hard resetting link
ata1: COMRESET failed (errno=-16)
e1000e 0000:00:1f.6 eno1: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5004 ms
e1000e 0000:00:1f.6 eno1: Reset adapter unexpectedly
igc 0000:07:00.0 enp7s0: Detected Tx Unit Hang
iwlwifi 0000:04:00.0: Queue 5 is stuck 12 25, resetting device
i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85dffffb, in Xorg [1234]
i915 0000:00:02.0: [drm] Resetting chip for stopped heartbeat on rcs0
NVRM: Xid (PCI:0000:0b:00): 79, pid=1, GPU has fallen off the bus.
snd_hda_intel 0000:03:00.1: azx_get_response timeout, switching to polling mode: last cmd=0x000f0000
""".splitlines()


def test_an_excerpt_is_explained_alone_within_noise_and_beside_warnings(
    excerpts: list[Any], noise: Noise, warnings: list[str]
) -> None:
    half = 30
    before, after = [*noise(half, 7), *warnings], [*warnings, *noise(half, 8)]
    for excerpt in excerpts:
        alone, found = excerpt.explain([], []), excerpt.explain(before, after)
        assert (alone.rule, alone.class_) == (excerpt.rule, excerpt.class_), excerpt
        assert (found.rule, found.class_) == (excerpt.rule, excerpt.class_), excerpt
        if found.rule:
            number, text = found.lines[0].line, found.lines[0].text
            assert number > half
            assert text[:40] in one_line([*before, *excerpt.lines][number - 1])


def test_every_row_of_the_table_has_an_excerpt(excerpts: list[Any]) -> None:
    assert {excerpt.row for excerpt in excerpts} >= ROWS
    assert len(excerpts) >= 200


def test_every_signature_has_an_excerpt(excerpts: list[Any], warnings: list[str]) -> None:
    found = {excerpt.rule for excerpt in excerpts}
    for signature in load_signatures().of("log", "build", "kernel"):
        if signature.severity == "benign":
            assert any(signature.find(warning) for warning in warnings), signature.id
        else:
            assert signature.id in found, signature.id


def test_what_helps_without_a_gpu_is_about_none() -> None:
    known = load_signatures()
    no_gpu = known.classes["missing-arch"].cpu
    assert no_gpu
    for signature in known.signatures:
        remedy = known.remedy_on_a_cpu(signature.id, signature.class_)
        if signature.severity != "benign" and remedy != no_gpu:
            assert not ABOUT_GPUS.search(remedy or ""), f"{signature.id} needs `cpu:`, in place of {remedy!r}"


def test_what_helps_without_a_gpu_is_that_of_the_rule_else_of_the_class() -> None:
    known = load_signatures()
    assert known.remedy_on_a_cpu("stack-import", "hang-import") == known.by_id("stack-import").cpu
    assert known.remedy_on_a_cpu("stack-copy", "hang-copy") == known.classes["hang-copy"].cpu
    assert known.remedy_on_a_cpu("disk-full", "disk-full") == known.by_id("disk-full").remedy
    # A record may name a rule that no longer exists.
    assert known.remedy_on_a_cpu("gone", "missing-arch") == known.classes["missing-arch"].cpu
    assert known.remedy_on_a_cpu(None, "disk-full") is known.remedy_on_a_cpu("gone", "gone") is None


def test_every_pattern_for_the_kernel_log_is_found_in_an_excerpt(excerpts: list[Any]) -> None:
    """A misspelt pattern matches no log, and nobody would notice if its rule has other patterns."""
    for signature in load_signatures().of("kernel"):
        lines = [line for excerpt in excerpts if excerpt.rule == signature.id for line in excerpt.lines]
        for pattern in signature.patterns if signature.severity != "benign" else ():
            assert any(pattern.search(line) for line in lines), (signature.id, pattern.pattern)


def test_what_the_kernel_prints_is_explained_by_a_rule_for_its_log(excerpts: list[Any]) -> None:
    """Rules for other logs are not applied to the kernel log."""
    for excerpt in excerpts:
        if excerpt.rule and load_signatures().by_id(excerpt.rule).where == "kernel":
            assert excerpt.quotes_kernel, f"{excerpt}: begins with its time, as `[  100.0] amdgpu 0000:03:00.0: `"
        elif excerpt.rule:
            assert not excerpt.quotes_kernel, f"{excerpt}: the rule needs `where: kernel`"


def test_what_a_line_of_the_kernel_says_of_a_gpu_is_what_its_class_says(excerpts: list[Any]) -> None:
    """A rule of another class than its line would make a reset a failure of the run, or the other way round."""
    signatures = load_signatures()
    for excerpt in excerpts:
        if excerpt.rule and signatures.by_id(excerpt.rule).where == "kernel":
            assert excerpt.gpu == signatures.classes[excerpt.class_].gpu, f"{excerpt}: say `gpu:` of the line"


def test_words_of_a_line_of_the_kernel_are_those_of_its_gpus_state(excerpts: list[Any]) -> None:
    """The same author writes class and `gpu:`, so both may be wrong alike: here the words of the line decide."""
    signatures = load_signatures()
    for excerpt in excerpts:
        if excerpt.rule and (rule := signatures.by_id(excerpt.rule)).where == "kernel":
            line = next(line for line in excerpt.lines if rule.find(line))
            named = {state for state, words in SAYS_OF_A_GPU.items() if words.search(line)}
            assert named == {excerpt.gpu}, f"{excerpt}: by SAYS_OF_A_GPU the line says {' and '.join(named)}"


def is_of_no_number(match: re.Match[str]) -> bool:
    return not match.groupdict("").get("pid", "").isdigit()


def test_a_line_of_the_kernel_that_names_a_process_counts_where_it_is_the_runs(excerpts: list[Any]) -> None:
    """A pattern without a group `pid` for the number would blame a run for what another run's process did."""
    for excerpt in excerpts:
        for line in (line for line in excerpt.lines if re.search(r"\bpid \d|process \d", line) and excerpt.kernel):
            found = scan(as_lines([line], "k"), ("kernel",), of_run=is_of_no_number)
            assert (found.every, found.endings) == ((), ()), excerpt


def test_what_the_kernel_prints_is_found_in_a_log_of_everything(excerpts: list[Any]) -> None:
    for excerpt in excerpts:
        if excerpt.rule and excerpt.kernel:
            found = explain_log(list(excerpt.lines), "all.log", [], excerpt.rocm, excerpt.torch).rule
            # In such a log, less specific rules may come first.
            assert found in (excerpt.rule, "gpu-page-fault", "hardware-gpu-hang", "build-failed"), excerpt


def test_what_the_driver_prints_of_a_gpu_that_works_is_no_failure() -> None:
    for line in HEALTHY:
        kernel = ["[    4.0] " + line.replace("{gpu}", "amdgpu 0000:03:00.0: amdgpu:")]
        assert explain_log([], "train.log", kernel).rule is None, line
        assert reset_lines(kernel, {"0000:03:00.0"}) == []


def test_what_happens_to_another_device_is_no_reset_of_a_gpu() -> None:
    """The lines have no addresses here, because a line without one may mean any GPU."""
    lines = [re.sub(r" [0-9a-f]{4}:\S+", "", f"[    4.0] {line}") for line in OTHER_DEVICES]
    assert reset_lines(lines, {"0000:03:00.0"}) == []


@pytest.mark.parametrize(
    ("line", "class_"),
    [
        ("traps: a[1] general protection fault ip:7 sp:7 error:0 in {gpu} GPU reset begin![0,7+1000]", "crash"),
        ("MES might be in[1]: segfault at 0 ip 0 sp 0 error 14 in EXT4-fs error[1+2]", "crash"),
        ("Memory cgroup out of memory: Killed process 1 (ring a timeout) total-vm:1kB", "oom-host"),
        ("ring a timeout invoked oom-killer: gfp_mask=0x0", "oom-host"),
        ("umip: GPU Hang[1] ip:7 sp:7: SGDT instruction cannot be used by applications.", "unknown"),
        ("x86/split lock detection: #AC: GPU Hang/1 took a split_lock trap at address: 0x7", "unknown"),
        ("CPU: 1 PID: 1 Comm: GPU reset begin Hardware", "unknown"),
        ("{gpu} amdgpu:  Process GPU Hang pid 1 thread ring a timeout pid 2", "unknown"),
        ("{gpu} [gfxhub] page fault (src_id:0, for process ring a timeout pid 1 thread a pid 1)", "kernel-fault"),
        ("watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [ring a timeout:1]", "unkillable"),
        ("EXT4-fs error (device a): ext4_lookup:1: inode #2: comm MES might be in: deleted inode", "disk"),
        ("process 'a' launched '/tmp/GPU reset begin!' with NULL argv: empty string added", "unknown"),
        ("process '/work/{gpu} GPU reset begin!' started with executable stack", "unknown"),
        ('ptrace attach of "{gpu} GPU reset begin!"[1] was attempted by "a"[2]', "unknown"),
        ("a[1] bad frame in 32bit rt sigreturn frame:000000006e8d1f0a ip:7 sp:7 orax:7 in GPU Hang[7+1]", "unknown"),
        ("process 'a' launched 'b pid 1 ring gfx timeout' with NULL argv: empty string added", "unknown"),
        ("a comm [4711]: segfault at 0 ip 0 sp 0 error 14 in ring gfx_0 timeout[1+2]", "unknown"),
        ("[    101]  1000   101     2000      500    40960        0             0 GPU Hang", "unknown"),
        ("task:GPU Hang        state:D stack:0     pid:1     ppid:1      flags:0x00000000", "unknown"),
        ("oom_reaper: reaped process 1 (GPU Hang), now anon-rss:0kB", "unknown"),
        ("WARNING: kernel/sched/core.c:1 at a.isra.0+0x1/0x2 [b], CPU#3: GPU reset begin/7", "unknown"),
        ("futex_wake_op: GPU mode1 reset tries to shift op by 40; fix this program", "unknown"),
        ("sock: sock_set_timeout: `ring a timeout' (pid 1) tries to set negative timeout", "unknown"),
        ("netlink: 'GPU Hang': attribute type 29 has an invalid length.", "unknown"),
        ("netlink: 3 bytes leftover after parsing attributes in process `GPU Hang'.", "unknown"),
        ("__vm_enough_memory: pid: 1, comm: EXT4-fs error, bytes: 7 not enough memory for the allocation", "unknown"),
        ("GPU reset begin calls setitimer() with new_value NULL pointer. Misfeature support will go", "unknown"),
        ("GPU Hang (1): /proc/1/oom_adj is deprecated, please use /proc/1/oom_score_adj instead.", "unknown"),
        ("mmap: GPU Hang (1) uses deprecated remap_file_pages() syscall.", "unknown"),
        ("mmap: GPU Hang (1): VmData 7 exceed data ulimit 7. Update limits.", "unknown"),
        ("capability: warning: `GPU Hang' uses 32-bit capabilities (legacy support in use)", "unknown"),
        ("memfd_create() without MFD_EXEC nor MFD_NOEXEC_SEAL, pid=1 'GPU Hang'", "unknown"),
        ("GPU Hang[1]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set", "unknown"),
        ("GPU Hang (1): Using mlock ulimits for SHM_HUGETLB is obsolete", "unknown"),
        ("GPU Hang uses obsolete (PF_INET,SOCK_PACKET)", "unknown"),
        ("GPU Hang (1): attempted to duplicate a private mapping with mremap.  This is not supported.", "unknown"),
        ("GPU Hang(1): Attempt to set a LOCK_MAND lock via flock(2).", "unknown"),
        ("cgroup: fork rejected by pids controller in /user.slice/GPU mode1 reset", "unknown"),
        ("tmpfs: Unknown parameter 'GPU mode1 reset'", "unknown"),
        ("tmpfs: Bad value for 'GPU mode1 reset'", "unknown"),
        ("1 (GPU Hang): Uhuuh, elf segment at 7 requested but the memory is mapped already", "unknown"),
    ],
)
def test_what_a_process_is_called_tells_nothing_of_a_gpu(line: str, class_: str) -> None:
    # The line as in /dev/kmsg, and as in the journal of a host with the longest possible name.
    for begins in ("[    4.0] ", f"2026-11-21T19:00:01.123456+0000 {'h' * 64} kernel: "):
        kernel = [begins + line.replace("{gpu}", "amdgpu 0000:03:00.0:")]
        assert explain_log([], "train.log", kernel).class_ == class_
        assert reset_lines(kernel, {"0000:03:00.0"}) == []


@pytest.mark.parametrize(
    ("process", "thread"),
    [
        ("oom-kill:", "a"),
        ("a", "process '"),
        ("'a", "'a"),
        ("Comm:", "a"),
        ("INFO: task", "a"),
        ("[1]", "a ip:"),
        ("task:", "a state:"),
    ],
)
def test_what_a_process_is_called_hides_nothing_that_the_driver_says(process: str, thread: str) -> None:
    told = f"ring gfx timeout, signaled seq=1, process {process} pid 7 thread {thread} pid 7"
    kernel = [f"[    4.0] amdgpu 0000:03:00.0: {told}"]
    assert explain_log([], "train.log", kernel).class_ == "gpu-reset"
    assert reset_lines(kernel, {"0000:03:00.0"}) == kernel


def test_warnings_are_no_failure_alone_or_together(warnings: list[str]) -> None:
    assert explain_log(warnings, "train.log").class_ == "unknown"
    for warning in warnings:
        assert explain_log([warning], "train.log").class_ == "unknown", warning
        assert explain_log(["epoch 1: loss 0.6", warning, "epoch 2: loss 0.5"], "train.log").rule is None, warning


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_failure(noise: Noise, seed: int) -> None:
    found = explain_log(noise(5000, seed), "train.log", noise(500, seed + 100))
    assert (found.rule, found.lines) == (None, ())


@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(0, 60),
    words=st.lists(st.text(alphabet="abcxyz 0123456789.,:=_-/%", max_size=60)),
)
@settings(max_examples=60, deadline=None)
def test_no_noise_ever_becomes_a_failure(noise: Noise, seed: int, count: int, words: list[str]) -> None:
    mixed = [*noise(count, seed), *words]
    Random(seed).shuffle(mixed)
    assert explain_log(mixed, "train.log").rule is None


@given(st.lists(st.text(max_size=200), max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read(lines: list[str]) -> None:
    found = explain_log(lines, "train.log")
    assert found.rule is None or found.lines


def test_every_preset_is_in_the_matrix_and_sets_what_may_help(matrix: Matrix) -> None:
    named = {preset for signature in load_signatures().signatures for preset in signature.presets}
    assert named
    assert named <= {name for name, preset in matrix.presets.items() if preset.variables}


def test_every_class_is_used() -> None:
    signatures = load_signatures()
    assert {signature.class_ for signature in signatures.signatures} == signatures.classes.keys()


def test_no_error_of_the_program_is_called_one_of_the_environment(excerpts: list[Any]) -> None:
    classes = load_signatures().classes
    programs = [excerpt for excerpt in excerpts if excerpt.class_ in ("user-code", "app-error")]
    assert len(programs) >= 30
    for excerpt in programs:
        assert classes[excerpt.explain([], []).class_].fault == "program"
