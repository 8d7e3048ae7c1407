from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.gpus.gpu_evidence import read_gpu_evidence
from harness.evidence.index import Index, rebuild_index
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import counts_of
from harness.matrix.cells import Matrix
from harness.report.build import build_report
from harness.report.junit import to_junit
from harness.report.markdown import to_markdown
from harness.report.model import CodeEvidence, Report
from harness.report.page import to_html
from harness.report.reader import Reader
from harness.report.sections.code_evidence import ABOUT, TITLE, code_evidence
from harness.report.write import built_report
from tests.harness.gpu_evidence_files import a_row, gpu_evidence, write_gpu_evidence
from tests.harness.report.synthetic import HOSTILE, KINDS, write_runs

ReportOf = Callable[..., Report]
HELD, DIFFERS = a_row("mlp", "held"), a_row("sdpa", "differs", detail="0.1 apart")


@pytest.fixture
def code_of(tmp_path: Path) -> Callable[..., CodeEvidence]:
    """Return a function that makes the section from files with these contents."""

    def make(*contents: object) -> CodeEvidence:
        for number, content in enumerate(contents):
            write_gpu_evidence(Results(tmp_path), content, str(number))
        return code_evidence(read_gpu_evidence(Results(tmp_path)))

    return make


def test_what_differs_comes_first_and_all_are_counted(code_of: Callable[..., CodeEvidence]) -> None:
    others = a_row("nccl", "not-applicable"), a_row("compile", "not-reached", seconds=None), a_row("fsdp", "held")
    (run,) = code_of(gpu_evidence(HELD, *others, DIFFERS)).runs
    assert [row.row for row in run.rows] == ["sdpa", "compile", "mlp", "fsdp", "nccl"]
    assert run.counts == {"held": 2, "differs": 1, "not-applicable": 1, "not-reached": 1}
    assert run.ran_on == "AMD Radeon RX 7900 XT (gfx1100), 21.5 GB"
    assert run.software == "torch 2.9.1+rocm6.3, HIP 6.3.42134, kernel 6.1.0, Python 3.11.2, numpy 2.2"
    assert run.revision == "revision 0123456789ab"


def test_of_one_gpu_and_torch_the_newest_is_shown_and_the_earlier_are_lines(
    code_of: Callable[..., CodeEvidence],
) -> None:
    runs = code_of(
        gpu_evidence(HELD, started="2026-11-21T10:00:00Z"),
        gpu_evidence(HELD, DIFFERS, started="2026-11-22T10:00:00Z", source=None),
        gpu_evidence(HELD, started="2026-11-22T09:30:00-02:00"),
        gpu_evidence(HELD, started="2026-11-20T10:00:00Z", torch="2.8.0+rocm6.3", source_dirty=True),
        gpu_evidence(HELD, started="2026-11-23T10:00:00Z", device="cpu"),
    ).runs
    assert [(run.file.split("/")[1], len(run.older)) for run in runs] == [("4", 0), ("2", 2), ("3", 0)]
    assert runs[1].older == (
        "2026-11-22 10:00 UTC, revision unknown: 1 held, 1 differing, 0 not applicable, 0 not reached",
        "2026-11-21 10:00 UTC, revision 0123456789ab: 1 held, 0 differing, 0 not applicable, 0 not reached",
    )
    assert runs[2].revision == "revision 0123456789ab, with changes that were not committed"


def test_a_run_on_a_cpu_never_passes_for_one_on_a_gpu(tmp_path: Path, report_of: ReportOf) -> None:
    alone = gpu_evidence(HELD, device="cpu", name="AMD Radeon RX 7900 XT", gfx="gfx1100")
    write_gpu_evidence(Results(tmp_path), alone)
    report = report_of([])
    (run,) = report.code.runs
    assert not run.on_gpu
    for text in (to_html(report), to_markdown(report)):
        assert "Code on this GPU: not yet run on one" in text
        assert "The CPU, no GPU: AMD Radeon RX 7900 XT" in text
        assert "gfx1100)" not in text


def test_page_and_markdown_show_every_run_and_say_what_it_is_about(tmp_path: Path, report_of: ReportOf) -> None:
    differs = a_row("sdpa", "differs", detail="0.1 apart", gpu_only=True, shown_red=False)
    write_gpu_evidence(Results(tmp_path), gpu_evidence(HELD, differs))
    report = report_of([])
    html, markdown = to_html(report), to_markdown(report)
    for text in (html, markdown):
        assert f"{TITLE}\n" in text.replace("</h3></summary>", "")
        assert "no cell qualifies by it" in text
        for shown in ("2026-11-22 17:00 UTC", "431 s", "revision 0123456789ab", "gpu-evidence/20261122T170000Z/"):
            assert shown in text
        assert "1 held, 1 differing, 0 not applicable, 0 not reached" in text
    assert ABOUT in markdown
    assert "| differs | sdpa (GPU only) | one sentence | 0.1 apart | 3.1 | never |" in markdown
    assert '<details id="code" open>' in html
    assert "<td>sdpa (GPU only)</td><td>one sentence</td><td>0.1 apart</td>" in html


def test_the_section_is_closed_where_all_held_and_absent_without_a_file(tmp_path: Path, report_of: ReportOf) -> None:
    assert 'id="code"' not in to_html(report_of([]))
    assert TITLE not in to_markdown(report_of([]))
    write_gpu_evidence(Results(tmp_path), gpu_evidence(HELD))
    assert '<details id="code">' in to_html(report_of([]))


def test_what_a_file_says_cannot_become_markup(tmp_path: Path, report_of: ReportOf) -> None:
    hostile = f"{HOSTILE} | a `b` ![x](https://example.org/x.png) \\| \u202e\n\n# c " + "d" * 10_000
    facts = dict.fromkeys(("name", "gfx", "torch", "driver", "python", "numpy", "kernel"), hostile)
    write_gpu_evidence(Results(tmp_path), gpu_evidence(a_row(hostile, "held", shows=hostile, detail=hostile), **facts))
    write_gpu_evidence(Results(tmp_path), {"<img src=x>\x1b[31m" * 99: 1}, "<img src=x>\x1b[31m")
    report = report_of([])
    assert max(map(len, (*report.code.unreadable, report.code.runs[0].rows[0].detail))) <= 600
    html, markdown = to_html(report), to_markdown(report)
    for text in (html, markdown):
        assert "<img" not in text
        assert "<script>window" not in text
        assert not any(character in text for character in "\x1b\u202e")
        assert len(text) < 10_000_000
    section = markdown[markdown.index(TITLE) :]
    assert "](" not in section.replace("\\](", "")
    assert "\n# " not in section
    (row,) = [line for line in section.splitlines() if line.startswith("| held")]
    assert row.replace("\\\\", "").replace("\\|", "").count("|") == 7


def test_a_file_that_cannot_be_read_is_a_line_with_its_name(matrix: Matrix, tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_gpu_evidence(results, "{", "broken")
    write_gpu_evidence(results, gpu_evidence(HELD), "whole")
    built = built_report(results, matrix)
    built.write(results)
    told = built.damaged
    assert len(told) == 1
    assert told[0].startswith("gpu-evidence/broken/gpu-evidence.json: is damaged or something else: ")
    for name in ("report.html", "report.md"):
        assert "Left out: gpu-evidence/broken/gpu-evidence.json" in (tmp_path / name).read_text(encoding="utf-8")


def test_nothing_about_cells_changes_by_it(matrix: Matrix, tmp_path: Path) -> None:
    on_cpus = [kind for kind in KINDS if kind.stack == "cpu"]
    results = write_runs(tmp_path, matrix, 12, on_cpus)

    def report() -> Report:
        rebuild_index(results)
        return build_report(results, Index(results).rows(), matrix, {}, counts_of(results), Reader(1e9))

    before = report()
    assert any("No run used a GPU" in caution for caution in before.cautions)
    for number, verdict in enumerate(("held", "differs", "not-reached")):
        write_gpu_evidence(results, gpu_evidence(*[a_row(verdict=verdict)] * 40, torch=str(number)), str(number))
    write_gpu_evidence(results, "{", "damaged")
    after = report()
    assert (len(after.code.runs), len(after.code.unreadable)) == (3, 1)
    assert after.model_copy(update={"code": before.code}) == before
    assert to_junit(after) == to_junit(before)
