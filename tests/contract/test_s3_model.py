"""S3 against a model of a few lines: buckets, objects, versions, uploads in parts, copies, conditions and
listings in any order, on memory and on plain files; the ledger agrees at the end."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from s3_stores import STORES
from s3_wire import Answer
from s3_world import World

BUCKETS = ("first", "other")
KEYS = ("a", "a/b", "a/b/c", "a/", "a//b", "b", "b/../c", "c d", "z" * 300, "\u00fc")
bodies = st.sampled_from([b"", b"x", b"small body", b"large " * 15_000])
keys = st.sampled_from(KEYS)
places = st.tuples(st.sampled_from(BUCKETS), keys)


@dataclass
class Version:
    """One version of a key; `body` None is a delete marker."""

    id: str
    body: bytes | None
    etag: str = ""


@dataclass
class Upload:
    """In progress."""

    place: tuple[str, str]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


@dataclass
class Model:
    """What should be there: each key's versions, newest first; `status` is the bucket's versioning."""

    status: str = ""
    keys: dict[str, list[Version]] = field(default_factory=dict)

    def current(self, key: str) -> Version | None:
        """None for nothing and for a delete marker."""
        versions = self.keys.get(key)
        return versions[0] if versions and versions[0].body is not None else None

    def publish(self, key: str, version: Version) -> None:
        """It is the newest now; whom it replaces is a matter of the bucket's versioning."""
        versions = self.keys.setdefault(key, [])
        if self.status != "Enabled":
            assert version.id == "null"
            versions[:] = [one for one in versions if one.id != "null"]
        versions.insert(0, version)

    def remove(self, key: str, id: str) -> None:
        """For good."""
        self.keys[key] = [one for one in self.keys.get(key, []) if one.id != id]


def md5(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class Machine(RuleBasedStateMachine):
    """Rules are requests; each answer is compared with the model's."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory(prefix="cumulus-model-")
        self.world = World(STORES[self.kind](Path(self.scratch.name)))
        self.buckets: dict[str, Model] = {}
        self.uploads: dict[str, Upload] = {}

    def teardown(self) -> None:
        self.world.close()
        self.scratch.cleanup()

    def ask(self, method: str, place: tuple[str, str], body: bytes = b"", **more: Any) -> Answer:
        return self.world.ask(method, f"/{place[0]}/{place[1]}", body, **more)

    def missing(self, answer: Answer, bucket: str) -> Model | None:
        """The bucket's model; None where there is none, and then the answer must say so."""
        found = self.buckets.get(bucket)
        assert found is not None or answer.status == 404, answer
        return found

    def published(self, model: Model, key: str, answer: Answer, body: bytes) -> None:
        assert answer.status == 200, answer
        id = answer.headers.get("x-amz-version-id", "null")
        etag = answer.headers.get("etag") or answer.leaf("ETag").replace("&quot;", '"')
        model.publish(key, Version(id, body, etag))

    # buckets
    @initialize()
    def begin(self) -> None:
        self.make_bucket("first")

    @rule(bucket=st.sampled_from(BUCKETS))
    def make_bucket(self, bucket: str) -> None:
        answer = self.world.ask("PUT", f"/{bucket}")
        assert (answer.status == 200) == (bucket not in self.buckets)
        self.buckets.setdefault(bucket, Model())

    @rule(bucket=st.sampled_from(BUCKETS))
    def drop_bucket(self, bucket: str) -> None:
        answer = self.world.ask("DELETE", f"/{bucket}")
        model = self.missing(answer, bucket)
        if model is None:
            return
        used = any(model.keys.values())
        assert answer.status == (409 if used else 204), answer
        if not used:  # uploads in progress end with it
            del self.buckets[bucket]
            self.uploads = {id: one for id, one in self.uploads.items() if one.place[0] != bucket}

    @rule(bucket=st.sampled_from(BUCKETS), status=st.sampled_from(["Enabled", "Enabled", "Suspended"]))
    def set_versioning(self, bucket: str, status: str) -> None:
        text = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>".encode()
        answer = self.world.ask("PUT", f"/{bucket}", text, query="versioning")
        model = self.missing(answer, bucket)
        if model is not None:
            assert answer.status == 200
            model.status = status

    # objects
    @rule(place=places, body=bodies)
    def put(self, place: tuple[str, str], body: bytes) -> None:
        answer = self.ask("PUT", place, body)
        model = self.missing(answer, place[0])
        if model is not None:
            self.published(model, place[1], answer, body)

    @rule(place=places, body=bodies, fits=st.booleans(), absent=st.booleans())
    def put_if(self, place: tuple[str, str], body: bytes, fits: bool, absent: bool) -> None:
        model = self.buckets.get(place[0])
        now = model.current(place[1]) if model else None
        etag = now.etag if now and fits else md5(b"another")
        headers = {"If-None-Match": "*"} if absent else {"If-Match": etag}
        answer = self.ask("PUT", place, body, headers=headers)
        if self.missing(answer, place[0]) is None or model is None:
            return
        if (now is None) if absent else (now is not None and fits):
            self.published(model, place[1], answer, body)
        else:
            assert answer.status == (412 if now else 404), answer

    @rule(place=places)
    def get(self, place: tuple[str, str]) -> None:
        answer = self.ask("GET", place)
        model = self.missing(answer, place[0])
        now = model.current(place[1]) if model else None
        assert answer.status == (200 if now else 404), answer
        if now:
            assert answer.body == now.body and answer.headers["etag"] == now.etag
            head = self.ask("HEAD", place)
            assert head.headers["etag"] == now.etag and head.headers["content-length"] == str(
                len(answer.body)
            )

    @rule(place=places)
    def delete(self, place: tuple[str, str]) -> None:
        answer = self.ask("DELETE", place)
        model = self.missing(answer, place[0])
        if model is None:
            return
        assert answer.status == 204
        if model.status:
            assert answer.headers["x-amz-delete-marker"] == "true"
            model.publish(place[1], Version(answer.headers["x-amz-version-id"], None))
        else:
            model.keys.pop(place[1], None)

    @rule(data=st.data(), place=places, remove=st.booleans())
    def one_version(self, data: st.DataObject, place: tuple[str, str], remove: bool) -> None:
        model = self.buckets.get(place[0])
        versions = model.keys.get(place[1], []) if model else []
        if model is None or not versions:
            return
        one = data.draw(st.sampled_from(versions))
        answer = self.ask("GET", place, query={"versionId": one.id})
        assert answer.status == (405 if one.body is None else 200), answer
        assert one.body is None or answer.body == one.body
        if remove:
            assert self.ask("DELETE", place, query={"versionId": one.id}).status == 204
            model.remove(place[1], one.id)

    @rule(source=places, to=places)
    def copy(self, source: tuple[str, str], to: tuple[str, str]) -> None:
        if source == to:
            return
        header = {"x-amz-copy-source": quote(f"/{source[0]}/{source[1]}")}
        answer = self.ask("PUT", to, headers=header)
        target, origin = self.buckets.get(to[0]), self.buckets.get(source[0])
        now = origin.current(source[1]) if origin else None
        if target is None or now is None:
            assert answer.status == 404, answer
        else:
            self.published(target, to[1], answer, now.body or b"")

    # uploads in parts
    @rule(place=places)
    def begin_upload(self, place: tuple[str, str]) -> None:
        answer = self.ask("POST", place, query="uploads")
        if self.missing(answer, place[0]) is not None:
            self.uploads[answer.leaf("UploadId")] = Upload(place)

    @rule(data=st.data(), number=st.integers(1, 3), body=bodies)
    def put_part(self, data: st.DataObject, number: int, body: bytes) -> None:
        if self.uploads:
            id = data.draw(st.sampled_from(sorted(self.uploads)))
            query = {"partNumber": str(number), "uploadId": id}
            answer = self.ask("PUT", self.uploads[id].place, body, query=query)
            assert (answer.status, answer.headers["etag"]) == (200, md5(body))
            self.uploads[id].parts[number] = (answer.headers["etag"], body)

    @rule(data=st.data(), abort=st.booleans())
    def end_upload(self, data: st.DataObject, abort: bool) -> None:
        if not self.uploads:
            return
        id = data.draw(st.sampled_from(sorted(self.uploads)))
        one = self.uploads[id]
        if abort or not one.parts:
            assert self.ask("DELETE", one.place, query={"uploadId": id}).status == 204
        else:
            chosen = [(number, *one.parts[number]) for number in sorted(one.parts)]
            rows = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
                for number, etag, _ in chosen
            )
            text = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
            answer = self.ask("POST", one.place, text, query={"uploadId": id})
            if not all(body for _, _, body in chosen[:-1]):  # at least one byte here, 5 MiB in earnest
                assert (answer.status, answer.code) == (400, "EntityTooSmall")
                return  # the upload goes on
            whole = b"".join(body for _, _, body in chosen)
            self.published(self.buckets[one.place[0]], one.place[1], answer, whole)
        del self.uploads[id]
        assert self.ask("GET", one.place, query={"uploadId": id}).status == 404

    # listings
    @rule(
        bucket=st.sampled_from(BUCKETS),
        prefix=st.sampled_from(["", "a", "a/", "b", "nothing"]),
        delimiter=st.sampled_from(["", "/"]),
        limit=st.integers(1, 4),
    )
    def list_keys(self, bucket: str, prefix: str, delimiter: str, limit: int) -> None:
        model = self.buckets.get(bucket)
        wanted = [key for key in (model.keys if model else ()) if model and model.current(key)]
        expected: list[str] = []
        for key in sorted((key for key in wanted if key.startswith(prefix)), key=str.encode):
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            shown = key[: at + 1] if at >= 0 else key
            if shown not in expected[-1:] or at < 0:
                expected.append(shown)
        found: list[str] = []
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(limit), "encoding-type": "url"}
        if delimiter:
            query["delimiter"] = delimiter
        while True:
            answer = self.world.ask("GET", f"/{bucket}", query=query)
            if self.missing(answer, bucket) is None:
                return
            prefixes = [
                piece.partition("</Prefix>")[0] for piece in answer.body.decode().split("<Prefix>")[2:]
            ]
            page = [unquote(text) for text in [*answer.leaves("Key"), *prefixes]]
            assert len(page) <= limit
            found += page
            if answer.leaf("IsTruncated") == "false":
                break
            query["continuation-token"] = answer.leaf("NextContinuationToken")
        assert sorted(found, key=str.encode) == sorted(expected, key=str.encode)
        assert delimiter or found == expected

    @rule(bucket=st.sampled_from(BUCKETS))
    def list_versions(self, bucket: str) -> None:
        answer = self.world.ask("GET", f"/{bucket}", query="versions&encoding-type=url")
        model = self.missing(answer, bucket)
        if model is not None:
            expected = [one.id for key in sorted(model.keys, key=str.encode) for one in model.keys[key]]
            assert answer.leaves("VersionId") == expected

    @invariant()
    def the_ledger_is_right(self) -> None:
        for name, model in self.buckets.items():
            there = [len(one.body) for all_ in model.keys.values() for one in all_ if one.body is not None]
            held = [
                len(body)
                for upload in self.uploads.values()
                for _, body in upload.parts.values()
                if upload.place[0] == name
            ]
            usage = self.world.index.usage("bucket", name)
            assert (usage.bytes, usage.objects) == (sum(there), len(there))
            assert usage.reserved_bytes == sum(held)


class OnFiles(Machine):
    """The same on plain files."""

    kind = "posix"


TestOnMemory = Machine.TestCase
TestOnFiles = OnFiles.TestCase
EFFORT = settings(
    max_examples=25 * settings().max_examples // 100,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
)
TestOnMemory.settings = EFFORT
TestOnFiles.settings = EFFORT
