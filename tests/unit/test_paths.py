"""Which way to a peer is tried first, and the frames of a tunnel."""

from __future__ import annotations

from pathlib import Path

import pytest

from sector._udt.paths import Paths, Way
from sector.client.ways import Ways
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


def build_ways(tmp_path: Path, wall: float = 1e9) -> tuple[Ways, Paths, list[float]]:
    session = tmp_path / "client.toml"
    session.touch()
    paths, _ = build_paths()
    clock = [wall]
    return Ways(str(session), paths, lambda: clock[0]), paths, clock


def test_the_next_command_knows_and_asks_only_for_a_moment(tmp_path: Path) -> None:
    """Silence is checked again for a moment; what costs a whole attempt to see is believed; a router that
    says no at once is not worth keeping."""
    first, paths, _ = build_ways(tmp_path)
    paths.way(PEER, True, 1)
    paths.failed(OTHER, "BROKEN", False, 4)
    paths.way(("10.0.0.4", 7011), True, 2)
    first.set_messages("silence for 2 s")
    second, later, _ = build_ways(tmp_path)
    assert second.messages == "silence for 2 s"
    assert later.wait_ms(PEER) == 250
    assert later.wait_ms(OTHER) == -1
    assert later.wait_ms(("10.0.0.4", 7011)) == 3000
    assert later.way(PEER, True, 1) == Way(True, "silence for 3 s")
    assert later.wait_ms(PEER) == -1


def test_an_answer_over_udp_is_remembered_too(tmp_path: Path) -> None:
    """Nothing is left of a file that says nothing."""
    first, paths, _ = build_ways(tmp_path)
    paths.way(PEER, True, 1)
    first.set_messages("silence for 2 s")
    second, later, _ = build_ways(tmp_path)
    assert later.way(PEER, False, 0) == Way()
    second.set_messages("")
    assert not (tmp_path / "client.toml.ways").exists()


def test_what_is_old_or_from_another_time_counts_for_nothing(tmp_path: Path) -> None:
    """Also when the clock was set back since."""
    first, paths, _ = build_ways(tmp_path)
    paths.way(PEER, True, 1)
    first.set_messages("silence for 2 s")
    for wall in (1e9 + 301, 1e9 - 3600):
        ways, later, _ = build_ways(tmp_path, wall)
        assert ways.messages == ""
        assert later.wait_ms(PEER) == 3000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        b'{"data": 7}',
        b'{"messages_until": 1e300, "messages_why": "x"}',
        b'{"messages_until": "soon"}',
        b'{"data": [{"host": "h", "port": 99999, "until": 1e9, "why": "w", "deep": true}]}',
        b'{"data": [' + b"[" * 5000,
    ],
)
def test_a_file_of_nonsense_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    """It holds hints only."""
    (tmp_path / "client.toml.ways").write_bytes(content)
    ways, paths, _ = build_ways(tmp_path)
    assert ways.messages == ""
    assert paths.known() == []


def test_nothing_is_kept_where_there_is_no_session_file(tmp_path: Path) -> None:
    """A program with a session in memory leaves no traces."""
    paths, _ = build_paths()
    ways = Ways(str(tmp_path / "none.toml"), paths, lambda: 1e9)
    paths.way(PEER, True, 1)
    ways.set_messages("silence for 2 s")
    assert list(tmp_path.iterdir()) == []
