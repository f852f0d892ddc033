"""Two processes on one tree and one index, each with locks of its own: what the second does just when the
first has looked is not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from s3_world import World

from cumulus.auth import lifecycle
from cumulus.backends.posix.store import PosixStore
from cumulus.ops import deletes, expiring, jobs, multipart, publish
from cumulus.ops.jobs import Jobs
from cumulus.ops.names import version_name
from cumulus.ops.rows import meta_of
from cumulus.parts import take_in
from cumulus.storage.api import Entry, Missing

Pair = tuple[World, World]
DAY_NS = 86_400 * 10**9


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    one = World(PosixStore(str(tmp_path / "store")))
    two = World(PosixStore(str(tmp_path / "store")), one.index)
    assert one.ask("PUT", "/bkt").status == 200
    yield one, two
    two.gateway.close()
    two.store.close()
    one.close()


def enable(world: World) -> None:
    """Versioning on."""
    world.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})


def put(world: World, body: bytes) -> str:
    """The version made."""
    answer = world.ask("PUT", "/bkt/k", body)
    assert answer.status == 200, answer.body
    return answer.headers.get("x-amz-version-id", "")


def get(world: World, version: str = "") -> bytes | str:
    """A body, or the code of the refusal."""
    answer = world.ask("GET", "/bkt/k", query={"versionId": version} if version else "")
    return answer.body if answer.status == 200 else answer.code


def once(
    patch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], Any], *, after: bool
) -> list[Any]:
    """`act` happens once, before or after the first call of a function; what it gave."""
    real, given = getattr(module, name), list[Any]()

    def wrapped(*words: Any, **options: Any) -> Any:
        if not given and not after:
            given.append(None)
            given[0] = act()
        result = real(*words, **options)
        if not given:
            given.append(None)
            given[0] = act()
        return result

    patch.setattr(module, name, wrapped)
    return given


def test_a_version_put_between_look_and_link_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    enable(one)
    first = put(one, b"one")
    made = once(monkeypatch, publish, "keep_version", lambda: put(two, b"two"), after=False)
    last = put(one, b"three")
    assert [get(one, version) for version in (first, made[0], last)] == [b"one", b"two", b"three"]


def test_a_version_that_two_replace_at_once_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first finds that the second has given it its other name; before it looks at that, the second has
    replaced the file, and the other name is the only one."""
    one, two = pair
    enable(one)
    first = put(one, b"one")
    kept = version_name("k", first)
    once(monkeypatch, one.store, "link", lambda: two.store.link("bkt", "k", kept), after=False)
    real, made = one.store.stat, list[str]()

    def stat(bucket: str, name: str) -> Entry:
        if name == kept and not made:
            made.append("")
            made[0] = put(two, b"two")
        return real(bucket, name)

    monkeypatch.setattr(one.store, "stat", stat)
    last = put(one, b"three")
    assert [get(two, version) for version in (first, made[0], last)] == [b"one", b"two", b"three"]
    assert get(two) == b"three"


def test_a_version_that_is_removed_while_it_is_replaced_leaves_no_file(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file gets another name when it was looked at under the first."""
    one, two = pair
    enable(one)
    first, looked = put(one, b"one"), list[bool]()

    def look(*words: Any) -> Any:
        """As a PUT of the second that comes no further before the removal has ended."""
        found = meta_of(*words)
        if not looked:
            looked.append(True)
            two.store.link("bkt", "k", version_name("k", first))
        return found

    monkeypatch.setattr(deletes, "meta_of", look)
    assert one.ask("DELETE", "/bkt/k", query={"versionId": first}).status == 204
    assert looked and get(two, first) == "NoSuchVersion" and get(two) == "NoSuchKey"
    assert one.store.names("bkt") == one.store.names("bkt", prefix=".cumulus/") == []
    assert one.ask("DELETE", "/bkt").status == 204


def test_what_a_put_links_by_mistake_does_not_become_current(pair: Pair) -> None:
    """It wanted to keep a version that another has just removed, and takes the name back in a moment."""
    one, two = pair
    enable(one)
    first, second = put(one, b"one"), put(one, b"two")
    kept = version_name("k", first)
    two.site.remove("bkt", kept)
    two.store.link("bkt", "k", kept)
    assert one.ask("DELETE", "/bkt/k", query={"versionId": second}).status == 204
    two.site.remove("bkt", kept)
    assert one.store.names("bkt") == one.store.names("bkt", prefix=".cumulus/versions/") == []
    assert get(one) == "NoSuchKey" and get(one, second) == "NoSuchVersion"


@pytest.mark.parametrize("what", ["removal", "scan"])
def test_a_version_that_gets_its_other_name_while_it_is_looked_for_is_found(
    what: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not yet there under the name of older versions, and is no longer there under the key's own."""
    one, two = pair
    enable(one)
    first = put(one, b"one")
    row, real, made = one.index.lookup("bkt", "k"), one.store.stat, list[str]()
    assert row is not None
    row = msgspec.structs.replace(row, latest=False)  # as it was, before it became current again

    def stat(bucket: str, name: str) -> Entry:
        try:
            return real(bucket, name)
        except Missing:
            if not made:
                made.append("")
                made[0] = put(two, b"two")
            raise

    monkeypatch.setattr(one.store, "stat", stat)
    if what == "scan":
        assert jobs._lost(one.site, one.site.bucket("bkt"), row, jobs.Done()) == []
        assert get(one, first) == b"one"
    else:
        assert deletes._remove_body(one.site, one.site.bucket("bkt"), row) > 0
        assert one.store.names("bkt", prefix=".cumulus/versions/") == []
    assert made and get(two, made[0]) == b"two"


def test_a_scan_leaves_the_version_that_is_replaced_while_it_looks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the row of the old version, and finds the file of the new one; both are listed."""
    one, two = pair
    enable(one)
    first = put(one, b"one")
    made = once(monkeypatch, one.store, "look", lambda: put(two, b"two"), after=False)
    jobs.rescan(one.site, one.site.bucket("bkt"), jobs.Done())
    assert [get(one, version) for version in (first, made[0])] == [b"one", b"two"]
    assert one.index.usage("bucket", "bkt").objects == 2


def test_a_scan_covers_nothing_that_is_put_when_it_has_looked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Others removed the file, and it gets a delete marker, which is older than what a client puts then."""
    one, two = pair
    enable(one)
    put(one, b"one")
    (tmp_path / "store/data/bkt/k").unlink()
    monkeypatch.setattr(jobs, "SETTLE_S", 0.0)
    made = once(monkeypatch, jobs, "_removed", lambda: put(two, b"two"), after=False)
    jobs.rescan(one.site, one.site.bucket("bkt"), jobs.Done())
    row = one.index.lookup("bkt", "k")
    assert row is not None and (row.version, row.marker) == (made[0], False) and get(one) == b"two"


def test_a_delete_marker_covers_what_was_put_just_before(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    enable(one)
    first = put(one, b"one")
    made = once(monkeypatch, deletes, "keep_version", lambda: put(two, b"two"), after=False)
    assert one.ask("DELETE", "/bkt/k").status == 204
    assert [get(one, version) for version in (first, made[0])] == [b"one", b"two"]


def test_a_version_that_becomes_current_again_is_kept_beside_a_put(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    enable(one)
    first, second = put(one, b"one"), put(one, b"two")
    made = once(monkeypatch, deletes, "_bring_back", lambda: put(two, b"three"), after=True)
    assert one.ask("DELETE", "/bkt/k", query={"versionId": second}).status == 204
    assert [get(one, version) for version in (first, second, made[0])] == [b"one", "NoSuchVersion", b"three"]


@pytest.mark.parametrize("together", [False, True])
def test_a_lifecycle_rule_leaves_what_was_put_after_it_looked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Whether the object goes with others or by itself."""
    one, two = pair
    put(one, b"old")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    one.boto().put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
    one.skew_ns = 3 * DAY_NS
    if together:
        once(monkeypatch, expiring, "delete_together", lambda: put(two, b"new"), after=False)
    else:
        monkeypatch.setattr(expiring, "fits_together", lambda *_: False)
        once(monkeypatch, expiring, "find_or_none", lambda: put(two, b"new"), after=True)
    Jobs(one.gateway.site, lifecycle).run()
    assert get(two) == b"new"


@pytest.mark.parametrize("moment", ["together", "alone", "found", "older", "body"])
def test_a_lifecycle_rule_leaves_what_lost_its_tag_after_it_looked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whether the object goes with others or by itself, and lost it before it was looked at again or after;
    likewise an older version."""
    one, two = pair
    rule: dict[str, Any] = {"ID": "r", "Status": "Enabled", "Filter": {"Tag": {"Key": "t", "Value": "v"}}}
    older = moment in ("older", "body")
    if older:
        enable(one)
        rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 1}
    else:
        rule["Expiration"] = {"Days": 1}
    made = one.boto().put_object(Bucket="bkt", Key="k", Body=b"tagged", Tagging="t=v")
    version = {"VersionId": made["VersionId"]} if older else {}
    if older:
        put(one, b"over it")
    one.boto().put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
    if moment != "together":
        monkeypatch.setattr(expiring, "fits_together", lambda *_: False)
    module, name, after = {
        "together": (expiring, "delete_together", False),
        "alone": (expiring, "find_or_none", False),
        "found": (expiring, "find_or_none", True),
        "older": (expiring, "delete_version", False),
        "body": (deletes, "_remove_body", False),
    }[moment]

    def untag() -> None:
        two.boto().delete_object_tagging(Bucket="bkt", Key="k", **version)

    acted = once(monkeypatch, module, name, untag, after=after)
    one.skew_ns = 3 * DAY_NS
    assert Jobs(one.gateway.site, lifecycle).run().expired == 0
    assert acted and get(two, version.get("VersionId", "")) == b"tagged"


def test_a_part_sent_again_beside_other_content_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PosixStore(str(tmp_path / "store")))
    assert world.ask("PUT", "/bkt").status == 200
    upload = world.boto().create_multipart_upload(Bucket="bkt", Key="k")["UploadId"]

    def part(body: bytes) -> str:
        query = {"partNumber": 1, "uploadId": upload}
        return world.ask("PUT", "/bkt/k", body, query=query).headers["etag"]

    etag = part(b"x" * 1000)
    once(monkeypatch, multipart, "_forget", lambda: part(b"x" * 1000), after=False)
    part(b"a" * 1000)
    body = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode()
    assert world.ask("POST", "/bkt/k", document, query={"uploadId": upload}).status == 200
    assert get(world) == b"x" * 1000
    world.close()


@pytest.mark.parametrize("moment", ["before", "amid", "after"])
def test_a_version_that_is_removed_while_it_becomes_current_again_is_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whether the removal is over before the body is copied, has already looked under the key's own name when
    it is copied there, or comes when it was: the next version becomes current, and no file is left."""
    one, two = pair
    enable(one)
    first, second, third = (put(one, body) for body in (b"one", b"two", b"three"))
    copy, stat = deletes._bring_back, two.store.stat
    waiting: list[Callable[[], Entry]] = []
    copied: list[Entry] = []

    def looked(bucket: str, name: str) -> Entry:
        try:
            return stat(bucket, name)
        finally:
            if moment == "amid" and name == "k" and waiting:
                copied.append(waiting.pop()())

    def bring_back(*words: Any) -> Entry:
        if met:
            return copy(*words)
        met.append(True)
        waiting.append(lambda: copy(*words))
        if moment == "after":
            copied.append(waiting.pop()())
        assert two.ask("DELETE", "/bkt/k", query={"versionId": second}).status == 204
        return copied[0] if copied else waiting.pop()()

    met: list[bool] = []
    monkeypatch.setattr(two.store, "stat", looked)
    monkeypatch.setattr(deletes, "_bring_back", bring_back)
    assert one.ask("DELETE", "/bkt/k", query={"versionId": third}).status == 204
    assert met
    jobs.rescan(one.site, one.site.bucket("bkt"), jobs.Done())
    assert [get(two, version) for version in (first, second, third)] == [b"one", *["NoSuchVersion"] * 2]
    assert get(two) == b"one"
    assert [entry.name for entry in one.store.names("bkt")] == ["k"]
    assert one.store.names("bkt", prefix=".cumulus/versions/") == []
    assert one.index.usage("bucket", "bkt").objects == 1


def test_what_is_being_deleted_is_there_or_not_but_never_an_empty_object(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With versioning suspended the marker takes the name that a kept version "null" has. Somebody reads
    before the index knows of it."""
    one, two = pair
    enable(one)
    one.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Suspended"})
    put(one, b"body")
    real, seen = one.store.delete, list[tuple[bytes | str, ...]]()

    def delete(*words: Any, **options: Any) -> Any:
        seen.append((get(two), get(two, "null")))
        stamp = real(*words, **options)
        seen.append((get(two), get(two, "null")))
        return stamp

    monkeypatch.setattr(one.store, "delete", delete)
    assert one.ask("DELETE", "/bkt/k").status == 204
    assert seen == [(b"body", b"body"), ("NoSuchKey", "NoSuchVersion")]
    assert (get(two), get(two, "null")) == ("NoSuchKey", "MethodNotAllowed")
    listed = two.ask("GET", "/bkt", query="versions").body
    assert listed.count(b"<DeleteMarker>") == 1 and b"<Version>" not in listed


def test_a_deletion_that_a_crash_cuts_off_leaves_a_marker_and_no_empty_object(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With versioning suspended; the index had not heard of it."""
    one, two = pair
    enable(one)
    one.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Suspended"})
    put(one, b"body")

    def crash(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(one.site.told, "apply", crash)
    with pytest.raises(KeyboardInterrupt):
        one.ask("DELETE", "/bkt/k")
    take_in(two.store, two.index)
    assert (get(two), get(two, "null")) == ("NoSuchKey", "NoSuchVersion")
    jobs.rescan(two.site, two.site.bucket("bkt"), jobs.Done())
    assert (get(two), get(two, "null")) == ("NoSuchKey", "MethodNotAllowed")


@pytest.mark.parametrize("state", ["Enabled", "Suspended"])
def test_a_key_below_another_that_two_put_at_once_can_be_put_again(
    pair: Pair, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finds "k" and puts "k/m" under its other name; when the second does, "k" has just gone. Neither
    knows of the other. In a bucket with versions both are kept."""
    one, two = pair
    enable(one)
    if state == "Suspended":
        one.boto().put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": state})
    bodies = dict[str, bytes]()

    def put_below(world: World, body: bytes) -> None:
        answer = world.ask("PUT", "/bkt/k/m", body)
        assert answer.status == 200, answer.body
        bodies[answer.headers["x-amz-version-id"]] = body

    def meanwhile() -> None:
        assert two.ask("DELETE", "/bkt/k").status == 204
        put_below(two, b"second")

    put(one, b"in the way")
    with monkeypatch.context() as patch:
        once(patch, publish, "_settle", meanwhile, after=False)
        put_below(one, b"first")
    assert one.ask("GET", "/bkt/k/m").body == b"second"
    assert one.ask("DELETE", "/bkt/k/m").status == 204
    put(one, b"in the way again")
    put_below(two, b"third")
    assert one.ask("GET", "/bkt/k/m").body == b"third"
    assert len(bodies) == (3 if state == "Enabled" else 1)
    for version, body in bodies.items():
        assert two.ask("GET", "/bkt/k/m", query={"versionId": version}).body == body
    assert two.ask("DELETE", "/bkt/k/m").status == 204
    assert one.ask("GET", "/bkt/k/m").code == "NoSuchKey"
