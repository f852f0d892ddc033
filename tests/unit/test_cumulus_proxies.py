"""Whom requests are from that come through a proxy of other makers."""

from __future__ import annotations

import pytest

from cumulus.proxies import behind, is_among, parse_networks

PROXIES = parse_networks("127.0.0.1, 10.0.0.0/24 ,2001:db8::/32")


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("::ffff:127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("2001:db8::5", "2001:db9::7", "2001:db9::7"),
        ("127.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.9", "192.0.2.7"),  # the client wrote the first
        ("127.0.0.1", "10.0.0.9", "10.0.0.9"),
        ("127.0.0.1", "192.0.2.7:5555", "192.0.2.7"),
        ("127.0.0.1", "[2001:db9::7]:5555", "2001:db9::7"),
        ("127.0.0.1", "6.6.6.6, unknown", "127.0.0.1"),
        ("127.0.0.1", "6.6.6.6, unknown, 10.0.0.9", "10.0.0.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("192.0.2.1", "6.6.6.6", "192.0.2.1"),  # no proxy of ours
        ("127.0.0.2", "6.6.6.6", "127.0.0.2"),
        ("", "6.6.6.6", ""),
    ],
)
def test_the_last_address_that_no_proxy_has_is_the_client(peer: str, said: str, client: str) -> None:
    headers = {"x-forwarded-for": said, "x-forwarded-proto": "https"}
    found, secure = behind(peer, False, lambda name: headers[name], PROXIES)
    assert (found, secure) == (client, is_among(peer, PROXIES))


@pytest.mark.parametrize(
    ("said", "before", "secure"),
    [("https", False, True), ("http", True, False), ("", True, True), ("gopher", False, False)],
)
def test_the_proxy_says_whether_the_client_speaks_tls(said: str, before: bool, secure: bool) -> None:
    headers = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": said}
    assert behind("127.0.0.1", before, lambda name: headers[name], PROXIES) == ("192.0.2.7", secure)


def test_nobody_is_believed_unless_named() -> None:
    headers = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
    assert behind("127.0.0.1", False, lambda name: headers[name], ()) == ("127.0.0.1", False)


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/24", "10.0.0.300", "10.0.0.0/24 10.1.0.0/24"])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no address or network"):
        parse_networks(f"127.0.0.1,{text}")
