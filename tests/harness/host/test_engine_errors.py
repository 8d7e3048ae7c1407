"""Tests of how an engine's errors and transfers are read, without one; tests/images tests with one."""

import pytest
from docker.errors import APIError, DockerException
from requests.exceptions import ReadTimeout
from urllib3.exceptions import ProtocolError

from harness.base.errors import NoAnswerError, UserError
from harness.host.engine_errors import engine_errors, follow_transfer, transfer_errors

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize("error", [APIError("a\n b"), DockerException("x"), ReadTimeout(), ProtocolError("cut")])
def test_whatever_goes_wrong_with_an_engine_is_one_line(error: Exception) -> None:
    with pytest.raises(UserError, match=r"^doing this: ") as caught, engine_errors("doing this"):
        raise error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "events",
    [
        [{"status": "Pushed", "id": "1"}, {"aux": {"Digest": DIGEST}}],
        [{"status": f"cpu-plain: digest: {DIGEST} size: 1780"}],
        [{"status": f"Digest: {DIGEST}"}, {"status": "Status: Downloaded newer image"}],
    ],
)
def test_every_kind_of_store_gives_the_digest(events: list[dict[str, object]]) -> None:
    assert follow_transfer(events, "pushing", lambda _: None) == DIGEST


def test_a_transfer_tells_its_errors_and_its_progress() -> None:
    told: list[str] = []
    events: list[dict[str, object]] = [
        {"id": "a", "progressDetail": {"current": 2_000_000}},
        {"id": "b", "progressDetail": {"current": 1_000_000}},
        {"error": "denied:\nno"},
    ]
    with pytest.raises(UserError, match="pushing: denied: no"):
        follow_transfer(events, "pushing", told.append)
    assert told == ["pushing: 2 MB", "pushing: 3 MB"]


def test_a_message_of_an_engine_that_quotes_megabytes_of_a_registry_is_cut() -> None:
    said = f"cannot unmarshal number {'9' * 5_000_000} into a field"
    with pytest.raises(UserError, match=r"^pulling: cannot unmarshal number 9+\.\.\.$") as of_transfer:
        follow_transfer([{"error": said}], "pulling", lambda _: None)
    with (
        pytest.raises(UserError, match=r"^pulling: cannot unmarshal number 9+\.\.\.$") as of_answer,
        engine_errors("pulling"),
    ):
        raise APIError(said)
    assert len(str(of_transfer.value)) == len(str(of_answer.value)) < 2100


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('Get "http://x/v2/": dial tcp 127.0.0.1:1: connect: connection refused', NoAnswerError),
        ("received unexpected HTTP status: 503 Service Unavailable", NoAnswerError),
        ("net/http: TLS handshake timeout", NoAnswerError),
        ("unexpected EOF", NoAnswerError),
        ("failed to register layer: Error processing tar file(exit status 1): unexpected EOF", UserError),
        ("denied: requested access to the resource is denied", UserError),
        ("dial unix /run/containerd/containerd.sock: connect: connection refused", UserError),
        ("manifest for x/vpoc:rocm5.7-torch2.2.2-plain not found", UserError),
    ],
)
def test_a_registry_that_is_away_is_distinguished_from_one_that_refuses(said: str, kind: type[UserError]) -> None:
    with pytest.raises(UserError) as caught:
        follow_transfer([{"error": said}], "doing", lambda _: None)
    assert type(caught.value) is kind
    assert ("cut off, or packed with zstd" in str(caught.value)) == ("tar file" in said)
    with pytest.raises(UserError) as caught, transfer_errors("doing"):
        raise APIError(said)
    assert type(caught.value) is kind


def test_what_an_engine_says_of_its_own_is_not_said_of_a_registry() -> None:
    with pytest.raises(UserError) as caught, engine_errors("starting a container"):
        raise APIError("OCI runtime create failed: timeout")
    assert type(caught.value) is UserError
