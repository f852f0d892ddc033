"""When a proxy gives up a server whose machine says nothing."""

from __future__ import annotations

import socket
import struct

import pytest

from cumulus.http.upstream import GONE_S, is_gone


def info(again: int, probes: int, silent_s: float) -> bytes:
    """What the kernel says of a connection (struct tcp_info of linux/tcp.h): retransmits, probes, and the
    time since the last acknowledgement."""
    return struct.pack("=8B13I", 1, 0, again, probes, 0, 0, 0, 0, *[0] * 12, int(silent_s * 1000))


@pytest.mark.parametrize(
    ("again", "probes", "silent_s", "gone"),
    [
        (8, 0, GONE_S + 1, True),  # what was sent is not acknowledged
        (0, 7, GONE_S + 1, True),  # it had no room, and now it does not say so any more
        (8, 0, GONE_S - 1, False),  # a path that is out for a moment
        (0, 1, 10 * GONE_S, False),  # no room for long: the kernel asks seldom, and is answered
        (0, 0, 1000 * GONE_S, False),  # nothing was asked
    ],
)
def test_a_machine_is_gone_when_it_answers_nothing(
    again: int, probes: int, silent_s: float, gone: bool
) -> None:
    assert is_gone(info(again, probes, silent_s)) is gone


def test_the_kernel_says_it_in_that_form() -> None:
    """A connection of which nothing is wrong, looked at a little after its last byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()
            client.settimeout(10)
            assert client.recv(1) == b""
            said = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    assert len(said) == 60 and not is_gone(said)
    again, probes = said[2:4]
    assert (again, probes) == (0, 0) and struct.unpack_from("=I", said, 56)[0] < 10_000
