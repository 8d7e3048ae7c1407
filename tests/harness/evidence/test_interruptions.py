from harness.evidence.interruptions import interruption_by


def test_what_the_harness_ended_on_purpose_is_not_said_to_be_ctrl_c() -> None:
    assert interruption_by("rank 0: unused pieces rose to 5.0 GB", shutting_down=False) == "harness"
    assert {interruption_by(text, shutting_down=False) for text in ("", "Ctrl-C", "SIGINT; twice")} == {"ctrl-c"}
