"""Whoever asks a benchmark what it does starts no measurement."""

from harness.base.paths import CHECKOUT

BENCHMARKS = CHECKOUT / "benchmarks"
# They are started by a benchmark, which tells them what to do.
STARTED = {
    BENCHMARKS / name
    for name in (
        "attacks/campaign.py",
        "attacks/hostile/__main__.py",
        "features_worker.py",
        "rehearsed_images.py",
        "shaped_ranks.py",
        "training_lightning.py",
        "training_worker.py",
    )
}
PROGRAMS = sorted(
    file
    for file in set(BENCHMARKS.rglob("*.py")) - STARTED
    if '__name__ == "__main__"' in file.read_text(encoding="utf-8")
)


def test_a_benchmark_reads_its_options() -> None:
    assert PROGRAMS
    for file in PROGRAMS:
        text = file.read_text(encoding="utf-8")
        assert any(reads in text for reads in (".parse_args(", "@click.command", "simulation(")), file
