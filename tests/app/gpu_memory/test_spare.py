import pytest
import torch
from fake_gpus import FakeHost

from vpoc.gpu_memory.spare import spare_share

GPUS = [torch.device("cuda", 0), torch.device("cuda", 1)]


class Runtime:
    """A stand-in for torch that reports the addresses of two cards, or of none."""

    def __init__(self, *addresses):
        self.addresses = addresses

    def address(self, device):
        return self.addresses[device.index] if self.addresses else None

    def count(self):
        return 2


@pytest.fixture
def host(tmp_path):
    """Return a host with two cards, of which the second drives a screen."""
    host = FakeHost(tmp_path)
    for index, address in enumerate(("0000:03:00.0", "0000:0a:00.0")):
        host.card(index, address, 0)
        for connector, status in (("DP-1", "disconnected"), ("HDMI-A-1", "connected" if index else "disconnected")):
            host.write(
                f"sys/devices/pci0000:00/{address}/drm/card{index}/card{index}-{connector}/status", f"{status}\n"
            )
    return host


@pytest.mark.parametrize("addresses", [("0000:03:00.0", "0000:0a:00.0"), ()])
def test_a_card_with_a_screen_keeps_more_free(host, addresses):
    shares = [spare_share(gpu, root=host.root, allocator=Runtime(*addresses), variables={}) for gpu in GPUS]
    assert shares == [0.1, 0.25]


def test_a_card_that_is_not_certain_and_what_was_asked_for(host):
    hidden = {"HIP_VISIBLE_DEVICES": "1"}
    assert spare_share(GPUS[1], root=host.root, allocator=Runtime(), variables=hidden) == 0.1
    assert spare_share(GPUS[1], 0.0, root=host.root, allocator=Runtime(), variables={}) == 0.0
