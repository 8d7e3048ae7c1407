from collections.abc import Callable

from harness.campaign.run_campaign import with_caution
from harness.evidence.index import Row
from harness.evidence.run_files import Record
from harness.evidence.verdicts.recommend import NamedCell
from harness.search.conclusion import Conclusion

FOUND = Conclusion("reached", True, "cpu-plain is known-good.", False, {}, NamedCell("cpu-plain", "single"))


def test_a_conclusion_on_an_image_of_uncommitted_changes_says_so(make_record: Callable[..., Record]) -> None:
    clean, dirty = (Row.of(make_record(executor="docker", revision=f"{'c' * 40}{more}")) for more in ("", "-dirty"))
    assert with_caution(FOUND, [clean]) == FOUND
    said = with_caution(FOUND, [clean, dirty]).sentence
    assert said.startswith(f"{FOUND.sentence} But its image was made from changes that no commit has")
