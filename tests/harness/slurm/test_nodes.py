import time
from pathlib import Path

from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.slurm.nodes import any_of_kind, by_kind, forget_booted, known_nodes, note_node


def test_nodes_are_grouped_by_kind_the_largest_group_first(host: HostFacts) -> None:
    other = host.model_copy(update={"kind": "another"})
    known = {"n1": other, "n2": host, "n3": host, "n4": host}
    assert by_kind(known, ["n1", "n2", "n3", "n5"]) == [("n2", "n3"), ("n1",)]


def test_what_nodes_told_is_kept_and_a_damaged_file_is_passed_over(tmp_path: Path, host: HostFacts) -> None:
    results = Results(tmp_path)
    note_node(results, "n1", host)
    (tmp_path / "hosts" / "nodes" / "n2.json").write_text("{")
    assert known_nodes(results) == {"n1": host}


def test_what_a_node_said_before_its_boot_is_forgotten(tmp_path: Path, host: HostFacts) -> None:
    results = Results(tmp_path)
    for name in ("n1", "n2", "n3"):
        note_node(results, name, host)
    forget_booted(results, {"n1": time.time() + 60, "n2": time.time() - 60})
    assert sorted(known_nodes(results)) == ["n2", "n3"]


def test_what_stands_for_all_is_no_machine(host: HostFacts) -> None:
    stands = any_of_kind(host)
    assert stands.kind == host.kind
    assert (stands.machine == host.machine, stands.boot_id) == (False, "")
