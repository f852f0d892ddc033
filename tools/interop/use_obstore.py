"""obstore (Rust's object_store) against the service at argument 1."""

from __future__ import annotations

import os
import sys
import urllib.request
from datetime import timedelta

import obstore
from obstore.store import S3Store


def main() -> None:
    """Put, get, list, copy, upload in parts, put if absent, sign in advance, delete."""
    store = S3Store(
        "obstore",
        endpoint=sys.argv[1],
        region="us-east-1",
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    data = os.urandom(1 << 20) * 11
    obstore.put(store, "dir/small", b"a small object\n")
    assert bytes(obstore.get(store, "dir/small").bytes()) == b"a small object\n"
    obstore.put(store, "dir/large", data, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "dir/large").bytes()) == data
    assert (
        bytes(obstore.get_range(store, "dir/large", start=7_000_000, length=10)) == data[7_000_000:7_000_010]
    )
    obstore.copy(store, "dir/large", "copy")
    assert obstore.head(store, "copy")["size"] == len(data)
    try:
        obstore.put(store, "copy", b"x", mode="create")
    except obstore.exceptions.AlreadyExistsError:
        pass
    else:
        raise AssertionError("put if absent replaced an object")
    paths = sorted(one["path"] for page in obstore.list(store) for one in page)
    assert paths == ["copy", "dir/large", "dir/small"], paths
    found = obstore.list_with_delimiter(store)
    assert found["common_prefixes"] == ["dir"]
    url = obstore.sign(store, "GET", "dir/small", timedelta(minutes=5))
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.read() == b"a small object\n"
    obstore.delete(store, paths)
    assert not [one for page in obstore.list(store) for one in page]


if __name__ == "__main__":
    main()
