"""What Debian's libudt 4.11 does that our rules for foreign peers rely on, asked of the library itself by a
peer of a few lines; and what follows for `udtcat` (docs/decisions/0040 and 0041)."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign import NO_FAREWELL, PEER, SECTOR, relay
from running import running, wait_listening

from sector.ports import free_ports

ISN, ID = 0x1234560, 0x77AA
PAYLOAD = 1456
ACK, SHUTDOWN, ACK2 = 2, 5, 6
IDLE_S = 60


@pytest.fixture(scope="module")
def idle_pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[float, list[IdlePair]]]:
    """Connections through a lossy relay on which nobody says a word for IDLE_S, and when they began."""
    with contextlib.ExitStack() as stack:
        pairs = [IdlePair(stack, tmp_path_factory.mktemp("idle"), we_send) for we_send in (True, False)]
        yield time.monotonic(), pairs


class IdlePair:
    """udtcat and libudt; after IDLE_S one of them sends DATA."""

    DATA = random.Random(6).randbytes(50_000)

    def __init__(self, stack: contextlib.ExitStack, folder: Path, we_send: bool) -> None:
        self.we_send = we_send
        self.source, self.target = folder / "source", folder / "target"
        self.source.write_bytes(self.DATA)
        does = (
            ["--recv", str(self.target)] if we_send else ["--send", str(self.source), "--pause", f"{IDLE_S}"]
        )
        self.libudt, port = stack.enter_context(libudt(*does))
        (front,) = free_ports(1)
        faults = ["--loss", "100000"]
        stack.enter_context(relay(["--listen", str(front), "--to", f"127.0.0.1:{port}", *faults]))
        self.cat = subprocess.Popen(
            [*SECTOR, "udtcat", "127.0.0.1", str(front)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        stack.callback(self.cat.kill)

    def check(self) -> None:
        """Both ends still live: now the data. (libudt sends by itself, perhaps long before we look.)"""
        assert self.cat.poll() is None or not self.we_send
        arrived, talk = self.cat.communicate(self.DATA if self.we_send else None, timeout=30)
        if self.we_send:
            assert (self.cat.returncode, talk) == (0, b"")
            self.libudt.wait(20)
            arrived = self.target.read_bytes()
        else:
            assert self.cat.returncode == 0 or NO_FAREWELL.fullmatch(talk)
        assert arrived == self.DATA


def test_idle_connections_begin(idle_pairs: tuple[float, list[IdlePair]]) -> None:
    """They idle while the other tests run."""
    assert all(pair.cat.poll() is None for pair in idle_pairs[1])


class Raw:
    """A client that speaks just enough UDT to ask libudt_peer at a port."""

    def __init__(self, port: int) -> None:
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.connect(("127.0.0.1", port))
        self._udp.settimeout(0.3)
        cookie, self.peer = 0, 0
        for request in (1, 0xFFFFFFFF):
            hello = (4, 1, ISN, 1500, 8192, request, ID, cookie, 0x0100007F, 0, 0, 0)
            for _ in range(20):
                self._udp.send(struct.pack(">16I", 0x80000000, 0, 0, 0, *hello))
                with contextlib.suppress(TimeoutError):
                    answer = struct.unpack(">16I", self._udp.recv(64))
                    cookie, self.peer = answer[11], answer[10]
                    break

    def close(self) -> None:
        """Without a farewell."""
        self._udp.close()

    def control(self, kind: int, info: int, *words: int) -> None:
        """Send a control packet."""
        head = (0x80000000 | kind << 16, info, 0, self.peer)
        self._udp.send(struct.pack(f">{4 + len(words or (0,))}I", *head, *(words or (0,))))

    def data(self, index: int) -> None:
        """Send a full packet, a message of its own."""
        head = struct.pack(">4I", ISN + index, 0xC0000000 | (index + 1), 0, self.peer)
        self._udp.send(head + bytes(PAYLOAD))

    def ask(self, number: int, ackno: int, wait_s: float = 2.0) -> bool:
        """Send a full ACK; whether its ACK2 came in that time."""
        self.control(ACK, number, ackno, 1000, 500, 8000, 1, 1000)
        return any(kind == ACK2 and info == number for kind, info, _ in self.hear(wait_s))

    def hear(self, seconds: float) -> Iterator[tuple[int, int, int]]:
        """Control packets (type, info, words) and data (-1, index, 0) that come within `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._udp.settimeout(left)
            try:
                packet = self._udp.recv(2048)
            except TimeoutError:
                return
            first, second = struct.unpack_from(">2I", packet)
            if first >> 31:
                yield first >> 16 & 0x7FFF, second, (len(packet) - 16) // 4
            else:
                yield -1, first - ISN, 0


@contextlib.contextmanager
def libudt(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A listening libudt_peer and its port."""
    (port,) = free_ports(1)
    with running([str(PEER), "listen", str(port), *arguments], stdout=subprocess.PIPE) as peer:
        try:
            wait_listening("libudt", peer, port)
            yield peer, port
        finally:
            peer.kill()


def test_libudt_answers_each_full_ack_though_it_says_nothing_new(tmp_path: Path) -> None:
    """An ACK of its first number, before any data went either way, is legal and answered every time."""
    with libudt("--recv", str(tmp_path / "target")) as (_, port), contextlib.closing(Raw(port)) as raw:
        assert all(raw.ask(number, ISN) for number in range(1, 11))
        time.sleep(2)
        assert raw.ask(11, ISN)
        assert raw.ask(12, ISN)


def test_a_libudt_sender_that_hears_no_acknowledgement_answers_too(tmp_path: Path) -> None:
    """With data under way, and whether or not the ACK moves anything."""
    source = tmp_path / "source"
    source.write_bytes(bytes(10 * PAYLOAD))
    with libudt("--send", str(source)) as (_, port), contextlib.closing(Raw(port)) as raw:
        assert any(kind == -1 and index >= 3 for kind, index, _ in raw.hear(5))
        assert all(raw.ask(number, ISN) for number in range(1, 6))
        assert all(raw.ask(number, ISN + 3) for number in range(6, 11))


def test_an_acknowledgement_of_what_was_never_sent_ends_libudts_connection(tmp_path: Path) -> None:
    """Why the tests here wait for the data they acknowledge: the answer still comes, and nothing after it."""
    source = tmp_path / "source"
    source.write_bytes(bytes(10 * PAYLOAD))
    with libudt("--send", str(source)) as (_, port), contextlib.closing(Raw(port)) as raw:
        assert any(kind == -1 and index == 9 for kind, index, _ in raw.hear(5))
        assert raw.ask(1, ISN + 11)
        assert not raw.ask(2, ISN)


def test_libudt_that_was_closed_answers_nothing(tmp_path: Path) -> None:
    """Its farewell comes once; after that its process may live on, but the connection does not."""
    source = tmp_path / "source"
    source.write_bytes(bytes(100))
    with libudt("--send", str(source)) as (_, port), contextlib.closing(Raw(port)) as raw:
        assert any(kind == -1 for kind, _, _ in raw.hear(1))
        assert raw.ask(1, ISN)
        assert raw.ask(2, ISN + 1)
        farewells = sum(kind == SHUTDOWN for kind, _, _ in raw.hear(1.5))
        assert farewells <= 1  # 0: it was heard while waiting for the ACK2
        with contextlib.suppress(ConnectionRefusedError):
            assert not any(raw.ask(number, ISN + 1, 0.3) for number in range(3, 6))


def test_a_shutdown_after_a_light_ack_of_everything_takes_data_from_libudts_reader(tmp_path: Path) -> None:
    """Why our close waits for a full one. The light ACK must come before libudt's 10 ms timer, so the
    test tries a few times."""
    for attempt in range(20):
        target = tmp_path / f"target{attempt}"
        with libudt("--recv", str(target)) as (peer, port), contextlib.closing(Raw(port)) as raw:
            raw.data(0)
            assert any(kind == ACK and words > 1 for kind, _, words in raw.hear(0.3))
            time.sleep(0.05)
            raw.data(1)  # its full ACK restarts the timer and the count
            next((heard for heard in raw.hear(0.3) if heard[0] == ACK and heard[2] > 1), None)
            for index in range(2, 2 + 64):
                raw.data(index)
            light = next((words == 1 for kind, _, words in raw.hear(0.3) if kind == ACK), False)
            raw.control(SHUTDOWN, 0)
            peer.wait(20)
            if light:
                assert target.stat().st_size < 66 * PAYLOAD
                return
    raise AssertionError("no light ACK came first")


@pytest.mark.parametrize("mode", [[], ["--message", "--message-size", "300000"]], ids=["stream", "message"])
def test_a_libudt_that_reads_late_still_gets_everything(mode: list[str], tmp_path: Path) -> None:
    """Our farewell arrives (stream) or is held back (messages) while nothing has been read."""
    data = random.Random(3).randbytes(900_000)
    target = tmp_path / "target"
    with libudt("--recv", str(target), "--pause", "3", *mode[:1]) as (peer, port):
        sent = subprocess.run([*SECTOR, "udtcat", *mode, "127.0.0.1", str(port)], input=data, timeout=20)
        assert sent.returncode == 0
        peer.wait(20)
    raw = target.read_bytes()
    if mode:
        raw = b"".join(raw[at + 4 : at + 300_004] for at in range(0, len(raw), 300_004))
    assert raw == data


@pytest.mark.parametrize("patient", [True, False], ids=["read at once", "read late"])
def test_a_libudt_that_is_killed_after_all_came_is_noticed_in_ten_seconds(
    patient: bool, tmp_path: Path
) -> None:
    """Every byte is delivered, even to a reader that wakes only afterwards, and one line says it."""
    data = random.Random(4).randbytes(100_000 if patient else 16_000_000)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    with libudt("--send", str(source), "--hold", "60") as (peer, port):
        cat = subprocess.Popen(
            [*SECTOR, "udtcat", "127.0.0.1", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert cat.stdout is not None
        assert cat.stderr is not None
        time.sleep(3)
        peer.send_signal(signal.SIGKILL)
        started = time.monotonic()
        if not patient:
            time.sleep(12)
        target.write_bytes(cat.stdout.read())
        talk = cat.stderr.read()
        assert cat.wait(10) == 1
        took = time.monotonic() - started
    line = NO_FAREWELL.fullmatch(talk)
    assert line is not None, talk
    assert line[2] is None
    assert int(line[1]) == len(data)
    assert target.read_bytes() == data
    assert took < 12.5 + (0 if patient else 3)


def test_a_libudt_that_is_killed_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """There it is known that data is missing; what had come is delivered."""
    source = tmp_path / "source"
    source.write_bytes(random.Random(5).randbytes(30_000_000))
    (front,) = free_ports(1)
    with libudt("--send", str(source)) as (peer, port):
        faults = ["--rate", "40000000", "--delay", "5000"]
        with relay(["--listen", str(front), "--to", f"127.0.0.1:{port}", *faults]):
            cat = subprocess.Popen(
                [*SECTOR, "udtcat", "127.0.0.1", str(front)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert cat.stdout is not None
            assert cat.stderr is not None
            arrived = cat.stdout.read(1_000_000)
            peer.send_signal(signal.SIGKILL)
            arrived += cat.stdout.read()
            talk = cat.stderr.read()
            assert cat.wait(5) == 1
    have = len(arrived)
    said = f"sector: connection broken: the peer fell silent; {have} bytes had been received\n"
    assert talk.decode() == said
    assert 1_000_000 <= have < 30_000_000
    assert source.read_bytes().startswith(arrived)


def test_idle_connections_live_on_through_loss(idle_pairs: tuple[float, list[IdlePair]]) -> None:
    """After a minute without a word, at 10 % loss each way, both directions still work."""
    began, pairs = idle_pairs
    time.sleep(max(0.0, began + IDLE_S - time.monotonic()))
    for pair in pairs:
        pair.check()


class RawServer:
    """A server that speaks just enough UDT to see what a libudt client makes of its words."""

    def __init__(self) -> None:
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self.port: int = self._udp.getsockname()[1]
        self.client = self.isn = 0

    def close(self) -> None:
        """Without a farewell."""
        self._udp.close()

    def handshake(self, request: int) -> None:
        """1: its own request with a cookie, as a server first answers, or asks. -1: it is connected."""
        ident = ID if request < 0 else self.client
        words = (4, 1, self.isn, 1500, 8192, request & 0xFFFFFFFF, ident, 0xC00C1E, 0x0100007F, 0, 0, 0)
        self._udp.send(struct.pack(">16I", 0x80000000, 0, 0, self.client, *words))

    def data(self, index: int) -> None:
        """Send a full packet of the stream."""
        self._udp.send(struct.pack(">4I", self.isn + index, 0xC0000001, 0, self.client) + bytes(PAYLOAD))

    def hear(self, seconds: float) -> Iterator[tuple[int, int]]:
        """Control packets (type, request of a handshake or 0) that come within `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._udp.settimeout(left)
            try:
                packet, where = self._udp.recvfrom(2048)
            except TimeoutError:
                return
            self._udp.connect(where)
            kind = struct.unpack_from(">I", packet)[0] >> 16 & 0x7FFF
            if kind == 0:
                hello = struct.unpack(">16i", packet[:64])
                self.isn, self.client = hello[6], hello[10]
            yield kind, hello[9] if kind == 0 else 0

    def acknowledged(self, seconds: float) -> bool:
        """Send the first packet until an ACK comes, for at most `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.data(0)
            if any(kind == ACK for kind, _ in self.hear(0.1)):
                return True
        return False

    def meet(self) -> None:
        """Until the client has sent its request with the cookie."""
        for heard in self.hear(10):
            if heard == (0, -1):
                list(self.hear(0.1))  # it asks twice at first
                return
            self.handshake(1)
        raise AssertionError("libudt does not ask for a connection")


@contextlib.contextmanager
def libudt_client() -> Iterator[tuple[RawServer, subprocess.Popen[bytes]]]:
    """A libudt that connects to us to receive, and waits for our answer."""
    with contextlib.closing(RawServer()) as server:
        command = [str(PEER), "connect", "127.0.0.1", str(server.port), "--recv", "/dev/null"]
        with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as peer:
            try:
                server.meet()
                yield server, peer
            finally:
                peer.kill()


def test_a_libudt_client_takes_data_for_the_answer_and_reads_nothing() -> None:
    """Why a server speaks of nothing before it knows that its answer has come (docs/decisions/0118)."""
    with libudt_client() as (server, peer):
        server.data(0)
        assert peer.wait(10) == 0  # connect() succeeded, and the first recv() said that nobody is there


def test_a_libudt_client_that_waits_answers_a_question_with_its_request() -> None:
    """And then the answer is as good as ever."""
    with libudt_client() as (server, _):
        server.handshake(1)
        assert (0, -1) in server.hear(0.1)
        server.handshake(-1)
        assert server.acknowledged(5)


def test_a_libudt_client_that_is_connected_answers_a_question_with_its_handshake() -> None:
    """So that the server may begin."""
    with libudt_client() as (server, _):
        server.handshake(-1)
        list(server.hear(0.1))
        assert all(kind != 0 for kind, _ in server.hear(0.6))  # it repeated its request till now
        server.handshake(1)
        assert (0, -1) in server.hear(1)
        assert server.acknowledged(5)


def test_a_server_that_speaks_first_is_heard_though_its_answer_is_lost(tmp_path: Path) -> None:
    """What came of it: udtcat that listens and sends, through a relay that loses its second datagram."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(random.Random(8).randbytes(300_000))
    server, front = free_ports(2)
    lost = ["--listen", str(front), "--to", f"127.0.0.1:{server}", "--back", "--loss-mask", "2"]
    with relay(lost), source.open("rb") as data:
        command = [*SECTOR, "udtcat", "-l", str(server)]
        with running(command, stdin=data, stderr=subprocess.PIPE) as cat:
            try:
                wait_listening("our", cat, server)
                where = ["connect", "127.0.0.1", str(front), "--recv", str(target)]
                subprocess.run([str(PEER), *where], check=True, timeout=60, stdout=subprocess.DEVNULL)
                assert cat.communicate(timeout=60)[1] == b""
                assert cat.returncode == 0
            finally:
                cat.kill()
    assert target.read_bytes() == source.read_bytes()
