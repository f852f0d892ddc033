"""Which way to a peer is tried first, and the frames of a tunnel."""

from __future__ import annotations

import pytest

from sector._udt.paths import Paths, Way
from sector.tunnel import Frames, pack, unpack

PEER = ("10.0.0.2", 7011)
OTHER = ("10.0.0.3", 7011)


def build_paths() -> tuple[Paths, list[float]]:
    now = [100.0]
    return Paths(lambda: now[0], retry_s=300.0), now


def test_a_blocked_peer_is_asked_over_udp_again_after_a_while() -> None:
    """What a silent path taught counts for `retry_s`, for that peer only."""
    paths, now = build_paths()
    assert paths.wait_ms(PEER) == 3000
    assert paths.way(PEER, True, 1) == Way(True, "silence for 3 s")
    assert paths.wait_ms(PEER) == -1
    assert paths.wait_ms(OTHER) == 3000
    now[0] += 299
    assert paths.way(PEER, True, 3) == Way(True, "silence for 3 s")
    now[0] += 2
    assert paths.wait_ms(PEER) == 3000
    assert paths.way(PEER, False, 0) == Way()


def test_failures_decide_where_the_next_transfer_goes_first() -> None:
    """A path that stalled or fell silent is avoided; TLS that nobody takes is not asked for again."""
    paths, _ = build_paths()
    paths.failed(PEER, "BROKEN", False, 4)
    assert paths.blocked(PEER) == "large datagrams are lost"
    paths.failed(PEER, "UNREACHABLE", True, 3)
    assert paths.wait_ms(PEER) == 3000
    paths.failed(PEER, "REJECTED", False, 1)
    assert paths.wait_ms(PEER) == -1
    paths.failed(OTHER, "DISKFULL", False, 0)
    assert paths.wait_ms(OTHER) == 3000


def test_a_transfer_that_broke_in_the_middle_avoids_udp_only_briefly() -> None:
    """The slave may just have gone away."""
    paths, now = build_paths()
    paths.failed(PEER, "BROKEN", False, 0)
    assert paths.wait_ms(PEER) == -1
    now[0] += 31
    assert paths.wait_ms(PEER) == 3000


@pytest.mark.parametrize("where", [("10.1.2.3", 7002), ("fd00::1", 65535)])
def test_frames_come_whole_however_the_bytes_are_cut(where: tuple[str, int]) -> None:
    """Addresses of both families survive; a frame is given when its last byte is there."""
    body = pack(where) + b"datagram"
    wire = (len(body).to_bytes(2, "big") + body) * 3
    frames, got = Frames(), []
    for i in range(len(wire)):
        got += frames.feed(wire[i : i + 1])
    assert got == [body] * 3
    assert unpack(got[0]) == where


def test_what_cannot_be_a_frame_is_refused() -> None:
    """The connection ends then; nothing is guessed."""
    with pytest.raises(ValueError, match="empty"):
        Frames().feed(b"\x00\x05hello")
    with pytest.raises(ValueError, match="address"):
        unpack(b"\x05" + bytes(18))
