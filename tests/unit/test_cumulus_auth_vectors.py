"""Signatures of the documentation's examples: Amazon S3 API reference, "Examples: Signature Calculations",
query parameters, chunks, chunks with trailing headers."""

from __future__ import annotations

import pytest
from cumulus_signing import ALICE, KEY, MAY, SECOND, People, call

from cumulus.auth.verify import Authenticated, AuthSettings, authenticate
from cumulus.checksums import Hasher
from cumulus.errors import S3Error

HOST = "examplebucket.s3.amazonaws.com"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SCOPE = f"{KEY}/20130524/us-east-1/s3/aws4_request"


def head(signature: str, payload: str = EMPTY, host: str = HOST, **more: str) -> dict[str, str]:
    """Headers of an example; all are signed."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    headers |= {"host": host, "x-amz-content-sha256": payload, "x-amz-date": "20130524T000000Z"}
    names = ";".join(sorted(headers))
    authorization = f"AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": authorization}


def check(method: str, target: str, headers: dict[str, str], at_ns: int = MAY) -> Authenticated:
    return authenticate(call(method, target, headers), People(), AuthSettings(), at_ns)


EXAMPLES = {
    "get": ("GET", "/test.txt", head(
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", range="bytes=0-9")),
    "put": ("PUT", "/test$file.text", head(
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        date="Fri, 24 May 2013 00:00:00 GMT", x_amz_storage_class="REDUCED_REDUNDANCY")),
    "lifecycle": ("GET", "/?lifecycle", head(
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")),
    "list": ("GET", "/?max-keys=2&prefix=J", head(
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_signed_in_the_header(name: str) -> None:
    """Also a minute short of a quarter of an hour away; with one digit changed it is refused."""
    method, target, headers = EXAMPLES[name]
    for away_s in (0, 14 * 60, -14 * 60):
        found = check(method, target, headers, MAY + away_s * SECOND)
        assert (found.identity.user, found.identity.access_key, found.scheme) == (ALICE, KEY, "v4")
    wrong = headers["Authorization"][:-1] + ("0" if headers["Authorization"][-1] != "0" else "1")
    with pytest.raises(S3Error) as caught:
        check(method, target, {**headers, "Authorization": wrong})
    assert caught.value.code == "SignatureDoesNotMatch"


def test_the_refusal_shows_what_was_signed() -> None:
    """As the documentation prints canonical request and string to sign of its first example."""
    method, target, headers = EXAMPLES["get"]
    with pytest.raises(S3Error) as caught:
        check(method, target, {**headers, "Authorization": headers["Authorization"][:-1] + "0"})
    names = "host;range;x-amz-content-sha256;x-amz-date"
    assert caught.value.fields["CanonicalRequest"] == (
        f"GET\n/test.txt\n\nhost:{HOST}\nrange:bytes=0-9\nx-amz-content-sha256:{EMPTY}\n"
        f"x-amz-date:20130524T000000Z\n\n{names}\n{EMPTY}"
    )
    digest = "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972"
    assert caught.value.fields["StringToSign"] == (
        f"AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n{digest}"
    )


def test_presigned() -> None:
    """Good for its 86,400 seconds, not for one more."""
    target = (
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + SCOPE.replace("/", "%2F")
        + "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )  # fmt: skip
    for late_s in (0, 86400):
        assert check("GET", target, {"Host": HOST}, MAY + late_s * SECOND).identity.user == ALICE
    with pytest.raises(S3Error, match="Request has expired") as caught:
        check("GET", target, {"Host": HOST}, MAY + 86401 * SECOND)
    assert caught.value.fields["Expires"] == "2013-05-25T00:00:00Z"


CHUNKS = [
    (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
]
TRAILED = [
    (65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
    (1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
    (0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
]


def frames(chunks: list[tuple[int, str]], end: bytes) -> bytes:
    """The example's letters a in chunks; `end` stands after the line of the empty one."""
    lines = [f"{size:x};chunk-signature={signature}\r\n".encode() for size, signature in chunks]
    data = [b"a" * size + b"\r\n" for size, _ in chunks[:-1]] + [end]
    return b"".join(piece for pair in zip(lines, data, strict=True) for piece in pair)


def test_chunks() -> None:
    """The whole body, 66,824 bytes, gives 66,560."""
    seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    headers = head(
        seed, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "s3.amazonaws.com", content_encoding="aws-chunked",
        content_length="66824", x_amz_decoded_content_length="66560",
        x_amz_storage_class="REDUCED_REDUNDANCY",
    )  # fmt: skip
    body = frames(CHUNKS, b"\r\n")
    decoder = check("PUT", "/examplebucket/chunkObject.txt", headers).body.decoder(66824)
    assert decoder.decoded_length == 66560
    assert b"".join(decoder.feed(memoryview(body))) == b"a" * 66560
    assert decoder.finish(Hasher(()).digest) == {}


def test_chunks_with_a_trailing_checksum() -> None:
    """The header after the body is signed too."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    headers = head(
        seed, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "s3.amazonaws.com",
        content_encoding="aws-chunked", x_amz_decoded_content_length="66560",
        x_amz_storage_class="REDUCED_REDUNDANCY", x_amz_trailer="x-amz-checksum-crc32c",
    )  # fmt: skip
    signature = b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    rule = check("PUT", "/examplebucket/chunkObject.txt", headers).body
    for between in (b"\r\n", b"\n", b"\n\r\n"):
        end = (
            b"x-amz-checksum-crc32c:sOO8/Q=="
            + between
            + b"x-amz-trailer-signature:"
            + signature
            + b"\r\n\r\n"
        )
        decoder = rule.decoder(None)
        assert b"".join(decoder.feed(memoryview(frames(TRAILED, end)))) == b"a" * 66560
        assert decoder.finish(Hasher(()).digest) == {"x-amz-checksum-crc32c": "sOO8/Q=="}
    forged = rule.decoder(None)
    with pytest.raises(S3Error, match="after the body does not fit"):
        forged.feed(memoryview(frames(TRAILED, end.replace(b"sOO8", b"sOO9"))))
