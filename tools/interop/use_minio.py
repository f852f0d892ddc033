"""minio-py against the service at argument 1."""

from __future__ import annotations

import io
import os
import sys
import urllib.request

from minio import Minio
from minio.commonconfig import CopySource, Tags
from minio.deleteobjects import DeleteObject


def main() -> None:
    """Put, get, list, copy, upload in parts, tags, sign in advance, delete."""
    client = Minio(
        sys.argv[1].removeprefix("http://"),
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        secure=False,
        region="us-east-1",
    )
    client.make_bucket("minio-py")
    data = os.urandom(1 << 20) * 11
    tags = Tags.new_object_tags()
    tags["colour"] = "blue"
    small = b"a small object\n"
    client.put_object("minio-py", "dir/ä b", io.BytesIO(small), len(small), tags=tags, metadata={"k": "v"})
    stat = client.stat_object("minio-py", "dir/ä b")
    assert (stat.size, stat.metadata["x-amz-meta-k"]) == (len(small), "v")
    assert client.get_object_tags("minio-py", "dir/ä b") == tags
    client.put_object("minio-py", "dir/large", io.BytesIO(data), -1, part_size=5 << 20)
    with client.get_object("minio-py", "dir/large") as answer:
        assert answer.read() == data
    with client.get_object("minio-py", "dir/large", offset=7_000_000, length=10) as answer:
        assert answer.read() == data[7_000_000:7_000_010]
    client.copy_object("minio-py", "copy", CopySource("minio-py", "dir/large"))
    names = [one.object_name for one in client.list_objects("minio-py", recursive=True)]
    assert names == ["copy", "dir/large", "dir/ä b"], names
    with urllib.request.urlopen(client.presigned_get_object("minio-py", "dir/ä b"), timeout=20) as answer:
        assert answer.read() == small
    errors = list(client.remove_objects("minio-py", [DeleteObject(name) for name in names]))
    assert not errors, errors
    client.remove_bucket("minio-py")
    assert not client.bucket_exists("minio-py")


if __name__ == "__main__":
    main()
