"""Names under which the panel may be asked: addresses and own names pass, names that can be rebound do not."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ov_backend.ui.access import KnownHosts, MalformedHost, host_name, is_known, machine_names, names_in

OWN = ["127.0.0.1", "127.0.0.1:7860", "0.0.0.0:1", "192.168.1.20:7860", "[::1]", "[::1]:7860", "[fe80::1%eth0]:7860", "10.0.0.7"]
OWN += ["localhost", "LOCALHOST:7860", "localhost.", "app.localhost:7860", socket.gethostname(), f"{socket.gethostname()}:7860"]
REBOUND = ["evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "local"]
REBOUND += ["127.0.0.1.nip.io", "0x7f000001", "2130706433", "127.1", "xn--9ca.example", "a" * 63 + ".example", "evil.example."]
MALFORMED = ["", " ", ":7860", "a b", "a/b", "a@b", "é.example", "[::1", "::1", "[evil]", "[127.0.0.1]", "a..b", "-a", "a:"]
MALFORMED += ["a:b", "a:123456", "a:1:2", "a" * 64, ".".join(["abc"] * 70), "<script>", "a\x00b", "[]", "."]
MALFORMED += ["localhost:7860, evil.example"]


@pytest.mark.parametrize("header", OWN)
def test_addresses_and_own_names_are_known(header: str) -> None:
    assert is_known(host_name(header), [])


@pytest.mark.parametrize("header", REBOUND)
def test_other_names_are_not_known_and_the_refusal_says_what_to_do(header: str) -> None:
    code, refusal = KnownHosts(advice="write it into the setting").check([header])
    assert (code, host_name(header) in refusal) == (403, True)
    assert refusal.endswith("write it into the setting.")


@pytest.mark.parametrize("header", MALFORMED)
def test_what_is_no_name_is_malformed(header: str) -> None:
    with pytest.raises(MalformedHost):
        host_name(header)


@given(st.text(max_size=40))
def test_any_header_is_a_name_or_malformed(header: str) -> None:
    try:
        assert host_name(header)
    except MalformedHost:
        return


@pytest.mark.parametrize(
    "allowed,name,known",
    [
        (["my.example"], "my.example", True),
        (["My.Example:443"], "my.example", True),
        (["https://abc.gradio.live"], "abc.gradio.live", True),
        (["https://abc.gradio.live/"], "evil.gradio.live", False),
        (["*.my.example"], "a.my.example", True),
        (["*.my.example"], "my.example", False),
        (["*.my.example"], "evilmy.example", False),
        (["*."], "evil.example.", False),
        (["", "http://[", "é", "a b"], "evil.example", False),
        (["0.0.0.0"], "evil.example", False),
    ],
)
def test_allowed_names_are_compared_whole(allowed: list[str], name: str, known: bool) -> None:
    assert is_known(name, allowed) is known


def test_a_machine_is_known_on_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Studio-PC.fritz.box")
    assert machine_names() == {"studio-pc.fritz.box", "studio-pc", "studio-pc.local"}


def test_a_machine_without_a_name_knows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert machine_names() == set()


def test_lists_of_names_are_read_from_any_value() -> None:
    assert names_in(" a.example, b.example;c\nd ") == ["a.example", "b.example", "c", "d"]
    assert [names_in(value) for value in (None, 7, "", " ", ["a"])] == [[]] * 5
