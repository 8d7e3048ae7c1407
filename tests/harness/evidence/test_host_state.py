"""Tests of the part of a host's state that its evidence depends on."""

import pytest

from harness.evidence.host_state import (
    HostState,
    changed_kind,
    changed_settings,
    settings_of,
    state_from_json,
    state_of,
)
from harness.host.facts import HostFacts


@pytest.fixture
def told(dual_host: HostFacts) -> HostFacts:
    """Return a host whose driver reports the VBIOS of the first GPU only."""
    first = dual_host.gpus[0].model_copy(update={"vbios": "113-A", "firmware": {"mes": "0x82"}})
    return dual_host.model_copy(update={"gpus": (first, dual_host.gpus[1]), "kernel_parameters": {"amdgpu.mes": "0"}})


def test_a_run_on_the_cpu_depends_on_the_kernel_alone(told: HostFacts) -> None:
    on_gpu = state_of(told, gpus_used=True)
    settings = {"VBIOS of GPU 0": "113-A", "amdgpu.mes": "0"}
    assert on_gpu == HostState(told.kernel, told.driver, {"GPU 0 mes": "0x82"}, settings)
    assert state_of(told, gpus_used=False) == HostState(told.kernel, told.driver, {}, {})
    assert state_from_json(on_gpu.as_json) == on_gpu
    assert settings_of(told) == {told.machine: settings}
    assert settings_of(None) == {}


def test_what_changed_is_reported_with_both_values() -> None:
    had = {"VBIOS of GPU 0": "113-A", "amdgpu.mes": "0", "iommu": "pt"}
    assert changed_settings(had, dict(had)) == ()
    now = {"VBIOS of GPU 0": "113-B", "amdgpu.mes": "1", "pcie_aspm": "off"}
    assert changed_settings(had, now) == (
        "VBIOS of GPU 0 was 113-A, is 113-B",
        "amdgpu.mes was 0, is 1",
        "iommu was pt, is not set",
        "pcie_aspm was not set, is off",
    )


def test_what_made_it_another_kind_of_host_is_reported_with_both_values() -> None:
    had = HostState("6.12.9", "6.14.14", {"GPU 0 mes": "0x82", "GPU 0 smc": "1"}, {"iommu": "pt"})
    assert changed_kind(had, had._replace(settings={})) == ()
    now = HostState("6.18.2", None, {"GPU 0 mes": "0x83", "GPU 1 smc": "2"}, {})
    assert changed_kind(had, now) == (
        "kernel was 6.12.9, is 6.18.2",
        "amdgpu driver was 6.14.14, is the kernel's",
        "GPU 0 mes was 0x82, is 0x83",
    )


def test_what_one_side_does_not_tell_is_no_change() -> None:
    assert changed_settings({}, {"VBIOS of GPU 0": "113-B", "amdgpu.mes": "1"}) == ()
    assert changed_settings({"VBIOS of GPU 1": "113-B", "amdgpu.mes": "1"}, {"VBIOS of GPU 0": "113-A"}) == ()
