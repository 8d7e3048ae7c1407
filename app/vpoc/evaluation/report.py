"""The evaluation in words, made from the document: the table on the terminal, and evaluation.md."""

from collections.abc import Sequence

from vpoc.evaluation.document import Document
from vpoc.evaluation.verdict import NETWORK


def summary(document: Document) -> str:
    """Return the tables of the models, pooled over the test blocks and held out, and the verdict below them."""
    rows = _comparison(document)
    return "\n".join(
        [
            _sample(document),
            "",
            *_aligned(["", "log-loss", "Brier", "accuracy", "log-loss held out"], [[*row[:4], row[5]] for row in rows]),
            "",
            *_aligned(["", "log-loss: network less this", "held out"], [[row[0], row[4], row[6]] for row in rows[:-1]]),
            "",
            _majority(document),
            "",
            *_notes(document),
            *document["verdict"]["answers"],
        ]
    )


def markdown(document: Document) -> str:
    """Return the whole report as Markdown."""
    heads = ["model", "log-loss", "Brier", "accuracy", "network less this", "log-loss held out", "network less this"]
    parts = [
        "# Evaluation",
        *(f"**{answer}**" for answer in document["verdict"]["answers"]),
        *_notes(document),
        _sample(document),
        _plan(document),
        "## Out of sample",
        _table(heads, _comparison(document)),
        f"Log-loss with {100 * document['bootstrap']['level']:g} % intervals: {document['bootstrap']['replicates']} "
        f"block-bootstrap replicates, {document['pooled']['sessions_drawn_together']} session(s) drawn together. "
        f"Below 0 the network is better. {_majority(document)} "
        f"Weights: {document['sample']['weights']}.",
        "The held-out sessions are for one look. Each choice that is made by them, and each further configuration that "
        "is tried on any of these sessions, makes the numbers better than they are.",
        "![Calibration and log-loss by fold](evaluation.png)",
        "## Folds",
        _folds(document),
        "## Calibration",
        _calibration(document),
        "## Placebo",
        _placebo(document),
    ]
    return "\n\n".join(parts) + "\n"


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table.

    The columns are split into two tables, because all of them do not fit 80 characters.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]


def _notes(document: Document) -> list[str]:
    """Return notes on the data, and the features that were out of range, if any."""
    named = document["out_of_range"]
    outside = [f"Outside what the training rows had, in this many rows held out: {', '.join(named)}."] if named else []
    return [*(f"Of the data: {note}." for note in document["notes"]), *outside]


def _sample(document: Document) -> str:
    sample, pooled, held_out = document["sample"], document["pooled"]["tested"], document["held_out"]["tested"]
    return (
        f"{document['target']}: {sample['sessions']} sessions ({sample['rows']} rows) from {sample['first_date']} to "
        f"{sample['last_date']}, {_percent(sample['rate'])} of them 1; out of sample {pooled['sessions']} sessions "
        f"({pooled['rows']} rows) in {len(document['folds'])} blocks, and {held_out['sessions']} ({held_out['rows']} "
        "rows) held out."
    )


def _majority(document: Document) -> str:
    pooled, held_out = (_percent(document[part]["tested"]["base_rate_accuracy"]) for part in ("pooled", "held_out"))
    return (
        "Always giving the answer that was more frequent there, which nobody knows before, has an accuracy of "
        f"{pooled} (held out: {held_out})."
    )


def _plan(document: Document) -> str:
    plan = document["plan"]
    said = (
        f"The first {plan['used']['first']} sessions train, then blocks of {plan['used']['block']} test and train in "
        f"turn. Between training and test, {plan['purged_sessions']} session(s) are purged, because labels look into "
        f"them, and {plan['used']['embargo']} are left out besides."
    )
    return said if plan["lowered"] is None else f"{said} {plan['lowered'][0].upper()}{plan['lowered'][1:]}."


def _comparison(document: Document) -> list[list[str]]:
    rows = []
    for name, scores in document["pooled"]["models"].items():
        row = [name, _interval(scores["log_loss"]), f"{scores['brier']['value']:.4f}"]
        row += [_percent(scores["accuracy"]["value"]), _difference(document["pooled"], name)]
        row += [f"{document['held_out']['models'][name]['log_loss']['value']:.4f}"]
        rows.append([*row, _difference(document["held_out"], name)])
    return rows


def _difference(part: Document, name: str) -> str:
    if name == NETWORK:
        return ""
    return _interval(part["network_less_baseline"][name]["log_loss"], "+")


def _folds(document: Document) -> str:
    names = list(document["pooled"]["models"])
    rows = []
    for fold in document["folds"]:
        trained, tested = fold["trained"], fold["tested"]
        row = [f"{tested['first_date']} to {tested['last_date']}", str(trained["sessions"]), str(tested["sessions"])]
        row += [str(tested["rows"]), _percent(tested["rate"])]
        rows.append([*row, *(f"{fold['models'][name]['log_loss']:.4f}" for name in names)])
    return _table(["test block", "sessions trained on", "sessions", "rows", "rate of 1", *names], rows)


def _calibration(document: Document) -> str:
    rows = []
    for name, scores in document["pooled"]["models"].items():
        found = scores["calibration"]
        slope, intercept = (
            "no spread" if found[key] is None else _interval(found[key], digits=2) for key in ("slope", "intercept")
        )
        rows.append([name, slope, intercept])
    lines = [
        "Of the labels on the logits of the predictions; 1 and 0 are ideal; below 1 predictions are too extreme.",
        _table(["model", "slope", "intercept"], rows),
        "The network, by predicted probability:",
        _table(
            ["predicted", "observed", "rows", "sessions"],
            [
                [f"{b['predicted']:.3f}", _interval(b["observed"], digits=3), str(b["rows"]), str(b["sessions"])]
                for b in document["pooled"]["models"][NETWORK]["calibration"]["bins"]
            ],
        ),
    ]
    return "\n\n".join(lines)


def _placebo(document: Document) -> str:
    placebo = document["placebo"]
    rows = [[name, *(_interval(gain, "+") for gain in gains)] for name, gains in placebo["gains"].items()]
    heads = ["model", *(f"shuffle {number}" for number in range(1, len(rows[0])))]
    found = placebo["better_than_chance"]
    said = (
        f"BETTER THAN CHANCE: {' and '.join(found)}. Answers leak into the training; this evaluation is not valid."
        if found
        else "Too few sessions to say whether this is chance."
        if placebo["too_few_sessions"]
        else "No model was better than chance, as it should be."
    )
    return (
        "Trained and scored on labels shuffled by session, where there is nothing to find; log-loss less that of the "
        f"constant rate.\n\n{_table(heads, rows)}\n\n{said}"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(found: Document, sign: str = "", digits: int = 4) -> str:
    value, low, high = (f"{found[key]:{sign}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
