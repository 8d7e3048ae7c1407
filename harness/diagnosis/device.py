"""Adapts an explanation to the device of its run: a line about a GPU means less where no GPU was used."""

from harness.evidence.files.run_files import Explanation, Intent, Record

NO_GPU = "this run used no GPU; for a run on a GPU the line means that"


def explanation_in_record(record: Record, *, mine: bool) -> Explanation | None:
    """Return the explanation in a record, maybe of an earlier harness or (not `mine`) of others, as it holds here."""
    told = record.explanation
    if told and not mine:
        # As below.
        from harness.diagnosis.judge import in_words_of_here  # noqa: PLC0415

        told = in_words_of_here(told)
    return told and on_its_device(told, record.intent)


def on_its_device(explanation: Explanation, intent: Intent) -> Explanation:
    """Return an explanation; for a run without a GPU, with the remedy for that and no presets, which are about GPUs."""
    if may_use_a_gpu(intent):
        return explanation
    # Imported here, because the rules take time to import, and few failed runs used no GPU.
    from harness.diagnosis.rules import load_signatures  # noqa: PLC0415

    remedy = load_signatures().remedy_on_a_cpu(explanation.rule, explanation.class_)
    cause = explanation.cause
    if "GPU" in cause and not cause.startswith(NO_GPU):
        cause = f"{NO_GPU} {cause}"
    return explanation.model_copy(update={"cause": cause, "remedy": remedy or explanation.remedy, "presets": ()})


def may_use_a_gpu(intent: Intent) -> bool:
    """Return whether a run uses a GPU, or a stack that may see one."""
    return intent.device != "cpu" or intent.rocm is not None
