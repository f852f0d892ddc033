"""Wrong requests to S3, and what each is answered with: (name, request, status, code)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

from s3_raw import Ask

from cumulus.auth.sigv4 import EMPTY_SHA256, ChunkSigner

MD5 = "content-md5"
Row = tuple[str, Ask, int, str]
RIGHT_TAGS = b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>"
DEEP = b"<a>" * 5000 + b"</a>" * 5000
BOMB = (
    b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><Delete><Object><Key>&b;</Key></Object></Delete>'
)
OUTER = (
    b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&a;</Key></Object></Delete>'
)


def md5(body: bytes) -> dict[str, str]:
    """What deletions of many need."""
    return {MD5: base64.b64encode(hashlib.md5(body).digest()).decode()}


def documents() -> list[Row]:
    """XML and JSON."""
    rows: list[Row] = []

    def put(what: str, query: str, body: bytes, code: str = "MalformedXML", status: int = 400) -> None:
        rows.append((f"{query}: {what}", Ask("PUT", f"/box?{query}", body, md5(body)), status, code))

    def remove(what: str, body: bytes) -> None:
        rows.append((f"delete: {what}", Ask("POST", "/box?delete", body, md5(body)), 400, "MalformedXML"))

    for query in ("cors", "lifecycle", "tagging", "versioning", "acl"):
        code = "MalformedACLError" if query == "acl" else "MalformedXML"
        put("cut off", query, b"<A><B>", code)
        put("no XML", query, b"nothing of the kind", code)
        put("another root", query, b"<Other/>", code)
    put("no UTF-8", "tagging", b"<Tagging>\xff\xfe</Tagging>")
    put("too deep", "tagging", DEEP)
    put(
        "a key twice",
        "tagging",
        RIGHT_TAGS.replace(b"</Tag><", b"</Tag><Tag><Key>k</Key><Value>w</Value></Tag><"),
        "InvalidTag",
    )
    put("a long key", "tagging", RIGHT_TAGS.replace(b">k<", b">" + b"k" * 200 + b"<"), "InvalidTag")
    put(
        "unknown state",
        "versioning",
        b"<VersioningConfiguration><Status>On</Status></VersioningConfiguration>",
        "IllegalVersioningConfigurationException",
    )
    put("no JSON", "policy", b"{", "MalformedPolicy")
    put("no statement", "policy", b'{"Version":"2012-10-17"}', "MalformedPolicy")
    put(
        "unknown effect",
        "policy",
        b'{"Version":"2012-10-17","Statement":[{"Effect":"Maybe"}]}',
        "MalformedPolicy",
    )
    put("deep JSON", "policy", b"[" * 15000 + b"]" * 15000, "MalformedPolicy")
    put("without rules", "lifecycle", b"<LifecycleConfiguration></LifecycleConfiguration>")
    for what, body in (
        ("cut off", b"<Delete><Object>"),
        ("empty", b""),
        ("no key", b"<Delete><Object></Object></Delete>"),
        ("no objects", b"<Delete></Delete>"),
        ("too many", b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>"),
        ("entities", BOMB),
        ("a file of ours", OUTER),
        ("zero byte", b"<Delete><Object><Key>\0</Key></Object></Delete>"),
    ):
        remove(what, body)
    rows.append(
        (
            "location: unknown",
            Ask(
                "PUT",
                "/other",
                b"<CreateBucketConfiguration><LocationConstraint>mars-1"
                b"</LocationConstraint></CreateBucketConfiguration>",
            ),
            400,
            "IllegalLocationConstraintException",
        )
    )
    rows.append(
        ("location: cut off", Ask("PUT", "/other", b"<CreateBucketConfiguration>"), 400, "MalformedXML")
    )
    rows.append(
        ("document too long", Ask("PUT", "/box?tagging", b" " * 2_200_000), 400, "MaxMessageLengthExceeded")
    )
    return rows


def heads() -> list[Row]:
    """Headers that make no sense, on a put over the object that must stay, and on a get."""
    rows: list[Row] = []

    def put(name: str, value: str, code: str, status: int = 400) -> None:
        rows.append((f"{name}: {value[:30]}", Ask("PUT", "/box/guard", b"new", {name: value}), status, code))

    def get(name: str, value: str, code: str, status: int = 400) -> None:
        rows.append((f"{name}: {value[:30]}", Ask("GET", "/box/guard", headers={name: value}), status, code))

    put(MD5, "not base64 !", "InvalidDigest")
    put(MD5, "AAAA", "InvalidDigest")
    put(MD5, "AAAAAAAAAAAAAAAAAAAAAA==", "BadDigest")
    put("x-amz-checksum-crc32", "AAAAAA==", "BadDigest")
    put("x-amz-checksum-crc32", "AA", "InvalidRequest")
    put("x-amz-checksum-sha256", "AAAA", "InvalidRequest")
    put("x-amz-checksum-crc99", "AAAA", "InvalidRequest")
    put("x-amz-sdk-checksum-algorithm", "crc32", "InvalidRequest")
    put("x-amz-sdk-checksum-algorithm", "rot13", "InvalidRequest")
    put("x-amz-storage-class", "CARDBOARD", "InvalidStorageClass")
    put("x-amz-acl", "everybody", "InvalidArgument")
    put("x-amz-grant-read", "id=nobody", "InvalidArgument")
    put("x-amz-grant-read", 'name="x"', "InvalidArgument")
    put("x-amz-meta-a", "x" * 3000, "MetadataTooLarge")
    put("x-amz-tagging", "a=%zz", "InvalidTag")
    put("x-amz-server-side-encryption", "aws:kms", "NotImplemented", 501)
    put("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented", 501)
    put("x-amz-website-redirect-location", "/x", "NotImplemented", 501)
    put("if-match", '"abc"', "PreconditionFailed", 412)
    put("if-none-match", "*", "PreconditionFailed", 412)
    put("x-amz-copy-source", "nobucket", "InvalidArgument")
    put("x-amz-copy-source", "/box/none", "NoSuchKey", 404)
    put("x-amz-copy-source", "/none/guard", "NoSuchBucket", 404)
    put("x-amz-copy-source", "/box/guard", "InvalidRequest")
    put("x-amz-copy-source", "/box/%ff", "InvalidURI")
    put("x-amz-security-token", "x", "InvalidToken")
    put("x-cumulus-forwarded", "1;A;::1;http;1;" + "0" * 64, "AccessDenied", 403)
    put("x-amz-expected-bucket-owner", "somebody", "AccessDenied", 403)
    get("range", "bytes=99999-", "InvalidRange", 416)
    get("x-amz-expected-bucket-owner", "somebody", "AccessDenied", 403)
    get("if-match", '"abc"', "PreconditionFailed", 412)
    return rows


def framed(change: Callable[[bytes], bytes] = lambda body: body, size: int = 5, **headers: str) -> Ask:
    """A put in signed chunks, changed on the way."""

    def chunks(signer: ChunkSigner) -> bytes:
        data = b"chunk"
        first = signer.chunk(signer.seed, hashlib.sha256(data).hexdigest())
        last = signer.chunk(first, EMPTY_SHA256)
        return change(
            b"5;chunk-signature=" + first.encode() + b"\r\n" + data + b"\r\n"
            b"0;chunk-signature=" + last.encode() + b"\r\n\r\n"
        )

    head = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(size), **headers}
    return Ask("PUT", "/box/guard", headers=head, payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD", chunks=chunks)


def unsigned_chunks(body: bytes, size: str = "5", **headers: str) -> Ask:
    """A put in chunks with a checksum behind them."""
    head = {
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": size,
        "x-amz-trailer": "x-amz-checksum-crc32",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return Ask("PUT", "/box/guard", body, head, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")


def frames() -> list[Row]:
    """Chunks of aws-chunked that are not as they should be."""
    right = b"5\r\nchunk\r\n0\r\nx-amz-checksum-crc32:aScL8g==\r\n\r\n"
    return [
        (
            "data changed",
            framed(lambda body: body.replace(b"\r\nchunk", b"\r\nchunK")),
            403,
            "SignatureDoesNotMatch",
        ),
        (
            "signature cut",
            framed(lambda body: body.replace(b"chunk-signature=", b"chunk-signature=0", 1)),
            400,
            "IncompleteBody",
        ),
        ("last chunk missing", framed(lambda body: body[: body.rindex(b"0;")]), 400, "IncompleteBody"),
        ("size no number", framed(lambda body: b"zz" + body[1:]), 400, "IncompleteBody"),
        ("size too large", framed(lambda body: b"9" + body[1:]), 403, "InvalidChunkSizeError"),
        ("decoded length too large", framed(size=6), 400, "IncompleteBody"),
        ("decoded length too small", framed(size=4), 403, "InvalidChunkSizeError"),
        ("more behind the end", framed(lambda body: body + b"more"), 400, "IncompleteBody"),
        ("trailer wrong", unsigned_chunks(right), 400, "BadDigest"),
        ("trailer missing", unsigned_chunks(b"5\r\nchunk\r\n0\r\n\r\n"), 400, "MalformedTrailerError"),
        (
            "trailer not announced",
            unsigned_chunks(right.replace(b"crc32", b"crc32c")),
            400,
            "MalformedTrailerError",
        ),
        (
            "trailer unknown",
            unsigned_chunks(right, x_amz_trailer="x-amz-checksum-md7"),
            400,
            "InvalidRequest",
        ),
        ("length no number", unsigned_chunks(right, size="five"), 400, "InvalidArgument"),
        ("size endless", unsigned_chunks(b"5" * 4000), 400, "IncompleteBody"),
        ("payload unknown", Ask("PUT", "/box/guard", b"x", payload="STREAMING-FOO"), 501, "NotImplemented"),
        ("payload no hash", Ask("PUT", "/box/guard", b"x", payload="abc"), 400, "InvalidArgument"),
        (
            "payload of another body",
            Ask("PUT", "/box/guard", b"x", payload="0" * 64),
            400,
            "XAmzContentSHA256Mismatch",
        ),
        ("body cut", Ask("PUT", "/box/guard", bytes(5000), cut=100), 0, ""),
        ("large body cut", Ask("PUT", "/box/guard", bytes(900_000), cut=500_000), 0, ""),
        (
            "HTTP chunk malformed",
            Ask("PUT", "/box/guard", b"zz\r\nabc\r\n", {"transfer-encoding": "chunked"}),
            400,
            "InvalidRequest",
        ),
        (
            "HTTP chunk too long",
            Ask("PUT", "/box/guard", b"1\r\nabc\r\n", {"transfer-encoding": "chunked"}),
            400,
            "InvalidRequest",
        ),
    ]


def raw_heads() -> list[Row]:
    """What is no request of HTTP, or too much of one."""
    too_long = "RequestHeaderSectionTooLarge"
    lines = [
        (b"GET\r\n\r\n", "InvalidRequest"),
        (b"GET / HTTP/7.3\r\n\r\n", "InvalidRequest"),
        (b"GET /box/guard HTTP/1.1\r\n\r\n", "InvalidRequest"),
        (b"GET /box/guard HTTP/1.1\r\nHost: s3\r\nHost: s3\r\n\r\n", "InvalidRequest"),
        (b"G@T / HTTP/1.1\r\nHost: s3\r\n\r\n", "InvalidRequest"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", "InvalidRequest"),
        (b"GET / HTTP/1.1\r\nHost: s3\r\nno colon\r\n\r\n", "InvalidRequest"),
        (b"GET / HTTP/1.1\r\nHost: s3\r\nbad name: x\r\nA: b\r\n\r\n", "InvalidRequest"),
        (b"PUT /box/guard HTTP/1.1\r\nHost: s3\r\nContent-Length: -5\r\n\r\n", "InvalidRequest"),
        (
            b"PUT /box/guard HTTP/1.1\r\nHost: s3\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "InvalidRequest",
        ),
        (
            b"PUT /box/guard HTTP/1.1\r\nHost: s3\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "InvalidRequest",
        ),
        (b"GET /" + b"x" * 80_000 + b" HTTP/1.1\r\n\r\n", too_long),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 80_000 + b"\r\n\r\n", too_long),
        (b"GET / HTTP/1.1\r\n" + b"A: 1\r\n" * 2000 + b"\r\n", too_long),
    ]
    return [(f"head {line[:24]!r}", Ask(raw=line), 400, code) for line, code in lines]


def names() -> list[Row]:
    """Buckets and keys that cannot be."""
    rows: list[Row] = [
        ("key of 1025 bytes", Ask("PUT", "/box/" + "k" * 1025, b"x"), 400, "KeyTooLongError"),
        ("key no UTF-8", Ask("PUT", "/box/%ff%fe", b"x"), 400, "InvalidURI"),
        ("key half encoded", Ask("PUT", "/box/%4", b"x"), 400, "InvalidURI"),
        ("no bucket", Ask("PUT", "//key", b"x"), 400, "InvalidURI"),
        ("path without slash", Ask(raw=b"GET box HTTP/1.1\r\nHost: h\r\n\r\n"), 400, "InvalidURI"),
        ("bucket not there", Ask("PUT", "/nowhere/k", b"x"), 404, "NoSuchBucket"),
        ("key not there", Ask("GET", "/box/none"), 404, "NoSuchKey"),
        ("out of the bucket", Ask("GET", "/box/../../../etc/passwd"), 404, "NoSuchKey"),
        ("out of the bucket, encoded", Ask("GET", "/box/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), 404, "NoSuchKey"),
        ("ours", Ask("GET", "/box/.cumulus/tmp/x"), 404, "NoSuchKey"),
        ("SQL", Ask("GET", "/box/'%3B%20DROP%20TABLE%20objects%3B--"), 404, "NoSuchKey"),
        ("bucket is there", Ask("DELETE", "/box"), 409, "BucketNotEmpty"),
    ]
    for name in ("ab", "Upper", "a_b", "1.2.3.4", "-ab", "xn--abc", "a" * 64, "a..b", "%2e%2e"):
        rows.append((f"bucket {name[:9]}", Ask("PUT", f"/{name}"), 400, "InvalidBucketName"))
    return rows


def queries() -> list[Row]:
    """Parameters."""
    bad = "InvalidArgument"
    return [
        ("max-keys no number", Ask(target="/box?max-keys=x"), 400, bad),
        ("max-keys negative", Ask(target="/box?list-type=2&max-keys=-1"), 400, bad),
        ("list-type unknown", Ask(target="/box?list-type=3"), 400, bad),
        ("encoding unknown", Ask(target="/box?encoding-type=rot13"), 400, bad),
        ("token no token", Ask(target="/box?list-type=2&continuation-token=%21"), 400, bad),
        ("version empty", Ask(target="/box/guard?versionId="), 400, bad),
        ("version unknown", Ask(target=f"/box/guard?versionId={'0' * 32}"), 404, "NoSuchVersion"),
        ("version impossible", Ask(target="/box/guard?versionId=none"), 400, bad),
        ("part 0", Ask("PUT", "/box/k?partNumber=0&uploadId=x", b"x"), 400, bad),
        ("part 10001", Ask("PUT", "/box/k?partNumber=10001&uploadId=x", b"x"), 400, bad),
        ("upload unknown", Ask("PUT", "/box/k?partNumber=1&uploadId=x", b"x"), 404, "NoSuchUpload"),
        ("abort unknown", Ask("DELETE", "/box/k?uploadId=x"), 404, "NoSuchUpload"),
        (
            "too many parameters",
            Ask(target="/box?" + "&".join(f"a{n}=1" for n in range(200))),
            400,
            "InvalidRequest",
        ),
        ("wrong method", Ask("DELETE", "/box/guard?acl"), 405, "MethodNotAllowed"),
        ("unknown method", Ask("BREW", "/box/guard"), 405, "MethodNotAllowed"),
        ("not here", Ask("PUT", "/box?website", b"<x/>"), 501, "NotImplemented"),
        ("attributes of nothing", Ask(target="/box/guard?attributes"), 400, "InvalidRequest"),
    ]


def signatures() -> list[Row]:
    """Who asks."""
    return [
        ("wrong secret", Ask("PUT", "/box/guard", b"x", secret="x" * 40), 403, "SignatureDoesNotMatch"),
        ("unknown key", Ask("PUT", "/box/guard", b"x", key="CUNOBODY"), 403, "InvalidAccessKeyId"),
        ("nobody", Ask("PUT", "/box/guard", b"x", sign=False), 403, "AccessDenied"),
        ("nobody deletes", Ask("DELETE", "/box/guard", sign=False), 403, "AccessDenied"),
        ("late", Ask("PUT", "/box/guard", b"x", skew_s=-1200), 403, "RequestTimeTooSkewed"),
        ("early", Ask("PUT", "/box/guard", b"x", skew_s=1200), 403, "RequestTimeTooSkewed"),
        ("region", Ask("PUT", "/box/guard", b"x", region="mars-1"), 400, "AuthorizationHeaderMalformed"),
        (
            "no signature",
            Ask("PUT", "/box/guard", b"x", change=("Signature=", "Sign=")),
            400,
            "AuthorizationHeaderMalformed",
        ),
        (
            "another scheme",
            Ask("PUT", "/box/guard", b"x", change=("AWS4-HMAC-SHA256 C", "Basic C")),
            400,
            "InvalidArgument",
        ),
        (
            "version 2",
            Ask("PUT", "/box/guard", b"x", {"authorization": "AWS k:s", "date": "x"}, sign=False),
            400,
            "InvalidRequest",
        ),
        ("no date", Ask("PUT", "/box/guard", b"x", change=("x-amz-date", "x-amz-dat")), 403, "AccessDenied"),
        (
            "another key's path",
            Ask("PUT", "/box/k", b"x", change=("PUT /box/k", "PUT /box/guard")),
            403,
            "SignatureDoesNotMatch",
        ),
        (
            "a header more",
            Ask("PUT", "/box/guard", b"x", change=("x-amz-date", "x-amz-acl: private\r\nx-amz-date")),
            403,
            "AccessDenied",
        ),
        (
            "presigned half",
            Ask("PUT", "/box/guard?X-Amz-Signature=0", b"x", sign=False),
            400,
            "AuthorizationQueryParametersError",
        ),
    ]


ROWS = documents() + heads() + frames() + raw_heads() + names() + queries() + signatures()
