from harness.host.fingerprint import read_gpus
from harness.host.gpus.displays import connected_displays, headless_first, why_a_screen_may_be_lost
from tests.harness.gpu_tree import TwoGpuHost, a_gpu

GPUS = (a_gpu(0), a_gpu(1))


def test_a_screen_is_named_by_its_connector(tree: TwoGpuHost) -> None:
    assert connected_displays(GPUS[0], tree.root) == ("DP-1",)
    assert connected_displays(GPUS[1], tree.root) == ()


def test_a_gpu_without_a_screen_is_used_first(tree: TwoGpuHost) -> None:
    assert headless_first(read_gpus(tree.root)) == (1, 0)
    # A status that no kernel writes does not count as a screen.
    tree.connect(1, "DP-1", "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    tree.connect(0, "DP-1", "disconnected")
    assert headless_first(read_gpus(tree.root)) == (0, 1)


def test_a_gpu_the_driver_tells_nothing_of_has_no_screen(tree: TwoGpuHost) -> None:
    unknown = GPUS[0].model_copy(update={"render_node": None})
    assert connected_displays(unknown, tree.root) == ()
    assert connected_displays(GPUS[0], tree.root / "elsewhere") == ()


def test_no_screen_is_lost_at_the_connector_that_every_card_has_for_pictures_in_memory(tree: TwoGpuHost) -> None:
    # As Linux lists the connectors of a card without a screen from 6.8 on.
    shown = {file.parent.name: file.read_text() for file in tree.device(1).glob("drm/card1/card1-*/status")}
    assert {name: status.strip() for name, status in shown.items()} == {
        "card1-DP-1": "disconnected",
        "card1-HDMI-A-1": "disconnected",
        "card1-Writeback-1": "unknown",
    }
    assert why_a_screen_may_be_lost(GPUS[1], tree.root) is None
    tree.connect(1, "HDMI-A-1", "unknown")
    assert why_a_screen_may_be_lost(GPUS[1], tree.root) == "a screen may be attached to it (HDMI-A-1 unknown)"
