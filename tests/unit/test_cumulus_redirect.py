"""Redirection: the file of servers, the choice among them, and the URL to which a request is sent."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest
from s3_world import HOST, SECOND, World

from cumulus.auth import sigv2
from cumulus.auth.sigv4 import ChunkSigner, Scope, signing_key
from cumulus.backends.memory import MemoryStore
from cumulus.ops.rows import DEFAULT_TYPE
from cumulus.redirect import Balancer, HostsFile, Mode, NoServer, Server, parse_hosts
from cumulus.rest.call import Call, Headers, Reply
from sector.errors import BadConfig, LocalIO, SectorError

ONE, TWO, THREE = (Server(False, f"s{n}.test:8888", f"s{n}.test:8889") for n in (1, 2, 3))
SERVERS = (ONE, TWO, THREE)


# the file --------------------------------------------------------------------------------------------------
def test_file_of_servers() -> None:
    """Comments, blank lines, a scheme's own port and letter case make no difference."""
    text = "# ours\n\nhttp://S1.Test:8888/ s1.test:8889 # fast\nhttps://[::1]:443 HTTPS://[::1]:9/\nhttp://b:80\n"
    assert parse_hosts(text, Path("h"), admin_needed=False) == (
        ONE,
        Server(True, "[::1]", "https://[::1]:9"),
        Server(False, "b"),
    )
    assert Server(True, "[::1]").url == "https://[::1]"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("s1.test:8888", "is no http:// or https:// URL"),
        ("ftp://s1.test", "is no http:// or https:// URL"),
        ("http://user:pw@s1.test", "is no port"),
        ("http://u@s1.test", "is no http:// or https:// URL"),
        ("http://", "is no http:// or https:// URL"),
        ("http://[::1", "URL"),
        ("http://s1.test/x", "has something after host and port"),
        ("http://s1.test:0", "is no port"),
        ("http://s1.test:70000", "is no port"),
        ("http://s1.test: a:1", "is no port"),
        ("http://s1.test s1.test", "is not HOST:PORT"),
        ("http://s1.test https://s1.test", "is not HOST:PORT"),
        ("http://s1.test ftp://s1.test:1", "is no port"),
        ("http://s1.test -:1", "is not HOST:PORT"),
        ("http://s1.test", "least-loaded needs the admin port"),
        ("http://s1.test a:1 b:2", "one word too many"),
        ("http://S0.test:80 a:1", "stands on two lines"),
    ],
)
def test_wrong_lines_are_named(line: str, says: str) -> None:
    """One line with file, line and what to write."""
    with pytest.raises(BadConfig) as caught:
        parse_hosts(f"http://s0.test a:1\n# x\n{line}\n", Path("/e/hosts"), admin_needed=True)
    assert caught.value.message.startswith("/e/hosts: line 3: ")
    assert says in caught.value.message
    assert "\n" not in str(caught.value)
    assert "http://HOST:PORT" in caught.value.hint


def test_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    """At the start these are errors."""
    path = tmp_path / "hosts"
    with pytest.raises(LocalIO, match="No such file"):
        HostsFile(path, pytest.fail, lambda: 0.0)
    for data, says in ((b"\xff", "UTF-8"), (b"#" * (2**20 + 1), "1 MiB"), (b"# none\n", "names no server")):
        path.write_bytes(data)
        with pytest.raises(BadConfig, match=says):
            HostsFile(path, pytest.fail, lambda: 0.0)


def test_changed_file_counts_within_a_second(tmp_path: Path) -> None:
    """A bad version is told once and changes nothing; a file that was removed is one."""
    path, now, told = tmp_path / "hosts", [0.0], list[SectorError]()
    path.write_text("http://a\n")
    hosts = HostsFile(path, told.append, lambda: now[0])
    path.write_text("http://a\nhttp://bb\n")
    assert [server.netloc for server in hosts.servers()] == ["a"], "looked at again within the second"
    now[0] = 1.0
    assert [server.netloc for server in hosts.servers()] == ["a", "bb"]
    path.write_text("http://a\nnonsense and more\n")
    for now[0] in (2.0, 3.0, 4.0):
        assert [server.netloc for server in hosts.servers()] == ["a", "bb"]
    assert [bad.message.split(": ")[1] for bad in told] == ["line 2"]
    path.unlink()
    for now[0] in (5.0, 6.0):
        assert len(hosts.servers()) == 2
    assert len(told) == 2
    path.write_text("http://c\n")
    now[0] = 7.0
    assert [server.netloc for server in hosts.servers()] == ["c"]


# the choice ------------------------------------------------------------------------------------------------
def balancer(mode: Mode, servers: tuple[Server, ...] = SERVERS, *, point: bool = True) -> Balancer:
    """With a fixed seed."""
    return Balancer(mode, lambda: servers, random.Random(1), point=point)


def chosen(ask: Balancer, times: int) -> list[Server | None]:
    """The servers for so many requests to the common name."""
    return [ask.choose("s3.test", secure=False) for _ in range(times)]


def test_only_one_waits_for_a_file(tmp_path: Path) -> None:
    """On a disk that does not answer. The others have what was in it before."""
    path, now, reads = tmp_path / "hosts", [0.0], threading.Semaphore(0)
    path.write_text("http://s1.test\n")
    hosts = HostsFile(path, pytest.fail, lambda: now[0])
    path.unlink()
    os.mkfifo(path)
    now[0] = 5.0
    found: list[tuple[Server, ...]] = []

    def wait() -> None:
        found.append(hosts.servers())
        reads.release()

    threading.Thread(target=wait, daemon=True).start()
    with path.open("w") as wire:  # opened when somebody reads
        for _ in range(3):
            threading.Thread(target=wait, daemon=True).start()
        for _ in range(3):
            assert reads.acquire(timeout=20)
        assert [servers[0].netloc for servers in found] == ["s1.test"] * 3
        wire.write("http://s2.test\n")
    assert reads.acquire(timeout=20)
    assert hosts.servers()[0].netloc == "s2.test"


def test_round_robin_is_exact() -> None:
    """In the order of the file, each as often."""
    found = chosen(balancer("round-robin"), 9)
    assert found[:3] == found[3:6] == found[6:]
    first = SERVERS.index(found[0])  # type: ignore[arg-type]
    assert found[:3] == [*SERVERS[first:], *SERVERS[:first]]


def test_random_uses_all() -> None:
    """About as often."""
    found = chosen(balancer("random"), 300)
    assert all(70 <= found.count(server) <= 130 for server in SERVERS)


def test_least_loaded_fills_the_gaps() -> None:
    """What was sent since the last answer counts; who is silent is left out until he answers."""
    ask = balancer("least-loaded")
    with pytest.raises(NoServer):
        chosen(ask, 1)
    assert ask.admins() == [server.admin for server in SERVERS]
    assert ask.heard(ONE.admin, 5) and ask.heard(TWO.admin, 2)
    assert chosen(ask, 3) == [TWO] * 3
    found = chosen(ask, 10)
    assert found.count(ONE) == found.count(TWO) == 5 and THREE not in found
    assert not ask.heard(TWO.admin, 0)
    assert chosen(ask, 4) == [TWO] * 4
    assert ask.lost(TWO.admin) and not ask.lost(TWO.admin)
    assert chosen(ask, 2) == [ONE] * 2
    assert ask.heard(THREE.admin, 0)
    assert chosen(ask, 1) == [THREE]


def test_loads_of_servers_that_left_the_file_are_forgotten() -> None:
    """They would have to answer first if they came back."""
    servers = [ONE, TWO]
    ask = Balancer("least-loaded", lambda: tuple(servers), random.Random(1))
    ask.heard(ONE.admin, 0)
    servers.remove(ONE)
    assert ask.admins() == [TWO.admin]
    servers.append(ONE)
    assert chosen(ask, 1) == [None]


def test_who_was_addressed_by_his_own_name_serves() -> None:
    """Unless he only redirects: then he is not chosen, and alone he has nobody."""
    serving = balancer("random", point=False)
    assert serving.choose("S2.Test:8888", secure=False) is None
    assert serving.choose("s2.test", secure=False) in SERVERS
    own = Server(False, "a")
    assert balancer("random", (own,), point=False).choose("A:80", secure=False) is None
    with pytest.raises(NoServer):
        balancer("random", (own,)).choose("a", secure=False)
    assert {balancer("random", (own, TWO)).choose("a", secure=False) for _ in range(9)} == {TWO}
    assert chosen(balancer("least-loaded", point=False), 1) == [None]


# requests --------------------------------------------------------------------------------------------------
class Pair:
    """A point and the server behind it; both know the same users."""

    def __init__(self, **settings: Any) -> None:
        self.server = World(MemoryStore(), **settings)
        self.point = World(MemoryStore(), **settings)
        self.point.gateway.balancer = balancer("round-robin", (ONE,))
        # it would send on what it may
        self.server.gateway.balancer = balancer("round-robin", (TWO,), point=False)

    def close(self) -> None:
        """End both."""
        self.server.close()
        self.point.close()

    def sent(self, method: str, path: str, body: bytes = b"", **options: Any) -> tuple[Call, Reply]:
        """What the point answers before any byte of the body."""
        call, reply = self.point.open(method, path, body, **options)
        assert isinstance(reply, Reply), "the point waits for a body"
        return call, reply

    def follow(self, call: Call, reply: Reply, body: bytes = b"", drop: tuple[str, ...] = ()) -> Any:
        """As a client that repeats its headers but those in `drop`."""
        url = urlsplit(dict(reply.headers)["Location"])
        pairs = [(name, value) for name, value in call.headers.pairs if name not in ("host", *drop)]
        target = url.path + (f"?{url.query}" if url.query else "")
        again = Call(
            id="F",
            method=call.method,
            target=target,
            headers=Headers([*pairs, ("Host", url.netloc)]),
            peer=call.peer,
            secure=False,
            at_ns=self.server.clock(),
            length=call.length,
        )
        return self.server.read(again, self.server.feed(self.server.gateway.start(again), body))


@pytest.fixture
def pair() -> Any:
    """A new one, with the bucket box of alice."""
    made = Pair(domain="s3.test", allow_sigv2=True)
    made.server.gateway.balancer, own = None, made.server.gateway.balancer
    assert made.server.ask("PUT", "/box").status == 200
    made.server.gateway.balancer = own
    yield made
    made.close()


SIGNATURE = ("authorization", "x-amz-date", "x-amz-content-sha256")


@pytest.mark.parametrize("drop", [(), ("authorization",), SIGNATURE])
@pytest.mark.parametrize("key", ["k", "a//b", "a/./b", "q/../r", "ü +%~", "t/"])
def test_signed_requests_are_sent_on(pair: Pair, key: str, drop: tuple[str, ...]) -> None:
    """Whether the client repeats the headers of its signature or not; others come along."""
    headers = {"x-amz-meta-a": "1  2", "Expect": "100-continue"}
    call, reply = pair.sent("PUT", f"/box/{key}", b"data", headers=headers)
    told = dict(reply.headers)
    assert reply.status == 307 and call.notes["error"] == "TemporaryRedirect"
    assert b"<Endpoint>s1.test:8888</Endpoint>" in bytes(reply.body)  # type: ignore[arg-type]
    assert b"<Bucket>box</Bucket>" in bytes(reply.body)  # type: ignore[arg-type]
    assert told["Location"].startswith("http://s1.test:8888/box/") and told["Cache-Control"] == "no-store"
    assert not {".", ".."} & set(urlsplit(told["Location"]).path.split("/"))
    assert parse_qs(urlsplit(told["Location"]).query)["X-Amz-Expires"] == ["60"]
    assert "secret of" not in str(told) + str(reply.body) + str(call.notes)
    assert pair.follow(call, reply, b"data", drop).status == 200
    call, reply = pair.sent("GET", f"/box/{key}", user="alice")
    found = pair.follow(call, reply, drop=drop)
    assert (found.status, found.body, found.headers["x-amz-meta-a"]) == (200, b"data", "1  2")


def test_body_is_still_checked(pair: Pair) -> None:
    """Against the hash that was signed for the point, though the header is gone."""
    call, reply = pair.sent("PUT", "/box/k", b"data")
    assert pair.follow(call, reply, b"dato", SIGNATURE).code == "XAmzContentSHA256Mismatch"
    call, reply = pair.sent("GET", "/box/k")
    assert pair.follow(call, reply).code == "NoSuchKey"


def test_url_is_good_for_one_request_and_a_minute(pair: Pair) -> None:
    """Another method, key, header or time is refused."""
    call, reply = pair.sent("PUT", "/box/k", b"data", headers={"x-amz-acl": "private"})
    assert pair.follow(call, reply, b"data", ("x-amz-acl",)).code == "SignatureDoesNotMatch"
    call.headers.pairs.append(("x-amz-meta-a", "1"))
    assert pair.follow(call, reply, b"data").code == "AccessDenied"
    call.headers.pairs.pop()
    pair.server.skew_ns = 61 * SECOND
    assert pair.follow(call, reply, b"data").code == "AccessDenied"
    pair.server.skew_ns = 0
    assert pair.follow(call, reply, b"data").status == 200
    call.method = "DELETE"
    assert pair.follow(call, reply).code == "SignatureDoesNotMatch"


def test_point_refuses_wrong_signatures_itself(pair: Pair) -> None:
    """Nobody gets a URL for what he cannot sign."""
    call, _ = pair.sent("GET", "/box/k")
    call.method = "DELETE"
    reply = pair.point.gateway.start(call)
    assert isinstance(reply, Reply) and reply.status == 403
    assert "Location" not in dict(reply.headers)


def test_head_lists_and_other_operations(pair: Pair) -> None:
    """HEAD has no document; a query stays; the list of buckets has no bucket."""
    call, reply = pair.sent("HEAD", "/box")
    assert (reply.status, reply.body) == (307, b"")
    assert pair.follow(call, reply).status == 200
    call, reply = pair.sent("GET", "/box", query="list-type=2&prefix=a%2Bb&x-id=ListObjectsV2")
    assert pair.follow(call, reply).leaf("Prefix") == "a+b"
    call, reply = pair.sent("GET", "/")
    assert b"<Bucket>" not in bytes(reply.body)  # type: ignore[arg-type]
    assert pair.follow(call, reply).leaf("Name") == "box"


def test_host_style_becomes_path_style(pair: Pair) -> None:
    """The server's name has no sub-domains."""
    call, reply = pair.sent("PUT", "/k", b"data", headers={"Host": f"box.{HOST}"})
    assert urlsplit(dict(reply.headers)["Location"]).path == "/box/k"
    assert pair.follow(call, reply, b"data").status == 200


def test_anonymous_requests_have_a_plain_url(pair: Pair) -> None:
    """What they may is decided where they go; nobody sends them on again."""
    call, reply = pair.sent("GET", "/box/k", user="")
    assert dict(reply.headers)["Location"] == "http://s1.test:8888/box/k?x-cumulus-redirected=1"
    assert pair.follow(call, reply).code == "AccessDenied"


@pytest.mark.parametrize("past_s", [0, 30])
def test_presigned_keeps_the_time_it_has_left(pair: Pair, past_s: int) -> None:
    """And not a second more."""
    url = pair.point.boto().generate_presigned_url(
        "get_object", Params={"Bucket": "box", "Key": "k"}, ExpiresIn=100
    )
    pair.point.skew_ns = past_s * SECOND
    target = url.removeprefix(f"http://{HOST}")
    call, reply = pair.sent("GET", target, user="", raw=True)
    query = parse_qs(urlsplit(dict(reply.headers)["Location"]).query)
    assert 100 - past_s - 3 <= int(query["X-Amz-Expires"][0]) <= 100 - past_s
    assert pair.follow(call, reply).code == "NoSuchKey"


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_what_a_link_carries_goes_along(pair: Pair, version: str) -> None:
    """In its query, as it came; nobody has to send it as a header."""
    client = pair.point.boto(signature_version=version)

    def in_query(request: Any, **_: Any) -> None:
        request.params = {"x-amz-meta-color": "red"}

    if version == "s3v4":
        client.meta.events.register("before-sign.s3", in_query)
    meta = {"Metadata": {"color": "red"}, "ContentType": "image/png"} if version == "s3" else {}
    url = client.generate_presigned_url("put_object", Params={"Bucket": "box", "Key": "k", **meta})
    assert "x-amz-meta-color=red" in url
    call, reply = pair.sent("PUT", url.removeprefix(f"http://{HOST}"), b"data", user="", raw=True)
    assert pair.follow(call, reply, b"data").status == 200
    found = stored(pair)
    assert found.headers["x-amz-meta-color"] == "red"
    assert found.headers["content-type"] == ("image/png" if version == "s3" else DEFAULT_TYPE)


def stored(pair: Pair) -> Any:
    """What is there now, without the balancer."""
    own, pair.server.gateway.balancer = pair.server.gateway.balancer, None
    found = pair.server.ask("GET", "/box/k")
    pair.server.gateway.balancer = own
    return found


def other(call: Call, **headers: str) -> Call:
    """The same request with other headers, "" for none."""
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = [pair for pair in call.headers.pairs if pair[0] not in changed]
    return replace(call, headers=Headers([*pairs, *(pair for pair in changed.items() if pair[1])]))


def test_a_link_holds_its_holder_to_the_same_where_it_is_sent(pair: Pair) -> None:
    """All headers that it was signed with are those of what comes after it, too."""
    params = {"Bucket": "box", "Key": "k", "ContentType": "text/plain", "IfNoneMatch": "*"}
    url = pair.point.boto(signature_version="s3v4").generate_presigned_url("put_object", Params=params)
    headers = {"Content-Type": "text/plain", "If-None-Match": "*"}
    call, reply = pair.sent(
        "PUT", url.removeprefix(f"http://{HOST}"), b"data", user="", raw=True, headers=headers
    )
    assert reply.status == 307
    for drop in ("if-none-match", "content-type"):
        assert pair.follow(call, reply, b"data", (drop,)).code == "SignatureDoesNotMatch"
    for changed in (other(call, content_type="text/html"), other(call, if_none_match='"x"')):
        assert pair.follow(changed, reply, b"data").code == "SignatureDoesNotMatch"
    assert pair.follow(call, reply, b"data").status == 200
    assert pair.follow(call, reply, b"more").status == 412
    assert stored(pair).headers["content-type"] == "text/plain"


def link2(pair: Pair, carried: dict[str, str], more: str = "", **headers: str) -> tuple[Call, Reply]:
    """What the point says to a link of version 2 for a PUT that carries these headers in its query, and has
    `more` there that was not signed; `headers` are signed and sent as such."""
    expires = str(pair.point.clock() // SECOND + 1000)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    text = sigv2.string_to_sign(
        "PUT", Headers((carried | sent).items()), expires, sigv2.resource("/box/k", [], HOST, "")
    )
    signed = {"AWSAccessKeyId": "ALICE", "Expires": expires, "Signature": sigv2.sign("secret of alice", text)}
    query = urlencode(carried | signed) + more
    return pair.sent("PUT", "/box/k", b"data", user="", query=query, headers=sent)


def test_a_link_of_version_2_is_no_wider_where_it_is_sent(pair: Pair) -> None:
    """Its type, as a parameter, as a header, or none; MD5 and checksums of the body are checked."""
    call, reply = link2(pair, {"content-type": "image/png"})
    assert pair.follow(other(call, content_type="text/html"), reply, b"data").code == "AccessDenied"
    assert pair.follow(other(call, content_type="image/png"), reply, b"data").status == 200
    assert pair.follow(call, reply, b"data").status == 200
    assert stored(pair).headers["content-type"] == "image/png"
    call, reply = link2(pair, {})
    assert pair.follow(other(call, content_type="text/html"), reply, b"data").code == "AccessDenied"
    assert pair.follow(call, reply, b"data").status == 200
    assert stored(pair).headers["content-type"] == DEFAULT_TYPE
    call, reply = link2(pair, {}, content_type="text/plain\xe9", x_amz_meta_a="1")
    for changed in (other(call, content_type="text/html"), other(call, content_type=""),
                    other(call, x_amz_meta_a="2")):  # fmt: skip
        assert pair.follow(changed, reply, b"data").code == "SignatureDoesNotMatch"
    assert pair.follow(call, reply, b"data").status == 200
    assert stored(pair).headers["content-type"] == "text/plain\xe9"
    md5 = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    crc = base64.b64encode(zlib.crc32(b"data").to_bytes(4)).decode()
    for carried in ({"Content-MD5": md5}, {"x-amz-checksum-crc32": crc}):
        call, reply = link2(pair, carried)
        assert pair.follow(call, reply, b"dato").code == "BadDigest"
        assert pair.follow(call, reply, b"data").status == 200


@pytest.mark.parametrize(
    "more", ["&X-Amz-Meta-Color=blue&Content-Type=a/b", "&x-amz-meta-color=blue&content-type=a/b"]
)
def test_of_a_header_that_a_link_has_twice_the_one_that_was_signed_goes_along(pair: Pair, more: str) -> None:
    """By version 2 the first one is, and others can be written behind it."""
    call, reply = link2(pair, {"x-amz-meta-color": "red", "content-type": "image/png"}, more)
    assert pair.follow(call, reply, b"data").status == 200
    found = stored(pair).headers
    assert (found["x-amz-meta-color"], found["content-type"]) == ("red", "image/png")
    call, reply = link2(pair, {}, more, x_amz_meta_color="red", content_type="image/png")
    assert pair.follow(call, reply, b"data").status == 200
    found = stored(pair).headers
    assert (found["x-amz-meta-color"], found["content-type"]) == ("red", "image/png")


def test_version_2_is_signed_anew(pair: Pair) -> None:
    """With version 4; a presigned one keeps its time."""
    expires = pair.point.clock() // SECOND + 1000
    resource = sigv2.resource("/box/k", [], HOST, "")
    text = sigv2.string_to_sign("GET", Headers(), str(expires), resource)
    signature = quote(sigv2.sign("secret of alice", text), safe="")
    query = f"AWSAccessKeyId=ALICE&Expires={expires}&Signature={signature}"
    call, reply = pair.sent("GET", "/box/k", user="", query=query)
    found = parse_qs(urlsplit(dict(reply.headers)["Location"]).query)
    assert "Signature" not in found and 990 <= int(found["X-Amz-Expires"][0]) <= 1000
    assert pair.follow(call, reply).code == "NoSuchKey"


def test_nobody_up_is_said(pair: Pair) -> None:
    """With a time after which to come back; a server that also serves does it itself."""
    pair.point.gateway.balancer = balancer("least-loaded")
    _, reply = pair.sent("GET", "/box/k")
    assert reply.status == 503 and ("Retry-After", "1") in reply.headers
    pair.server.gateway.balancer = balancer("least-loaded", point=False)
    assert pair.server.ask("GET", "/box/k").code == "NoSuchKey"


def test_a_point_serves_nothing_that_says_it_was_redirected(pair: Pair) -> None:
    """Anybody can say so; where it is true, another server takes the point for one that serves."""
    pair.point.gateway.balancer, own = None, pair.point.gateway.balancer
    assert pair.point.ask("PUT", "/here").status == 200
    pair.point.gateway.balancer = own
    for method, path in (("PUT", "/box"), ("PUT", "/here/k"), ("GET", "/here/k"), ("DELETE", "/here")):
        answer = pair.point.ask(
            method, path, b"data" if path.endswith("k") else b"", query="x-cumulus-redirected"
        )
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "location" not in answer.headers
    assert pair.point.index.bucket("here") is not None and pair.point.index.bucket("box") is None


def test_web_pages_can_follow(pair: Pair) -> None:
    """The preflight is answered here; the redirection carries what the browser wants to see."""
    rules = (
        b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
        b"</CORSRule></CORSConfiguration>"
    )
    point = pair.point
    point.gateway.balancer, kept = None, point.gateway.balancer
    assert point.ask("PUT", "/box").status == 200
    assert point.ask("PUT", "/box", rules, query="cors").status == 200
    point.gateway.balancer = kept
    origin = {"Origin": "http://page.test"}
    asks = {**origin, "Access-Control-Request-Method": "GET"}
    asked = point.ask("OPTIONS", "/box/k", user="", headers=asks)
    assert asked.status == 200
    _, reply = pair.sent("GET", "/box/k", user="", headers=origin)
    assert reply.status == 307
    assert dict(reply.headers)["Access-Control-Allow-Origin"] == "*"
    assert pair.sent("GET", "/other/k", user="", headers=origin)[1].status == 307


def test_signed_chunks_continue_the_first_signature(pair: Pair) -> None:
    """A client that repeats its body repeats the chunks' signatures; one that is wrong is refused."""
    payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    headers = {"x-amz-content-sha256": payload, "x-amz-decoded-content-length": "4"}
    call, reply = pair.sent("PUT", "/box/k", b"x", headers=headers)
    words = call.headers.get("authorization").replace(",", " ").split()
    seed = next(word.removeprefix("Signature=") for word in words if word.startswith("Signature="))
    timestamp = call.headers.get("x-amz-date")
    scope = Scope(timestamp[:8], "us-east-1")
    signer = ChunkSigner(signing_key("secret of alice", scope), timestamp, scope, seed)
    first = signer.chunk(seed, hashlib.sha256(b"data").hexdigest())
    last = signer.chunk(first, hashlib.sha256(b"").hexdigest())
    body = f"4;chunk-signature={first}\r\ndata\r\n0;chunk-signature={last}\r\n\r\n".encode()
    call.length = len(body)
    assert pair.follow(call, reply, body.replace(b"data", b"dato")).status == 403
    assert pair.follow(call, reply, body, SIGNATURE).status == 200
