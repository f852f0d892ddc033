"""What a user of the Python package s3fs does, run as a program: argument 1 is the service's URL; the key and
the secret are in the environment. Fails when something is not as it should be."""

from __future__ import annotations

import sys
import urllib.request

import s3fs

SMALL = b"a small object\n"
LARGE = bytes(range(256)) * (11 << 12) + b"tail"


def main() -> None:
    """Put, get, list, copy, upload in parts, sign in advance, delete."""
    # without the latter botocore signs URLs in advance by version 2
    region, version = {"region_name": "us-east-1"}, {"signature_version": "s3v4"}
    fs = s3fs.S3FileSystem(endpoint_url=sys.argv[1], client_kwargs=region, config_kwargs=version)
    fs.mkdir("s3fs")
    fs.pipe_file("s3fs/dir/ä b", SMALL)
    assert fs.cat_file("s3fs/dir/ä b") == SMALL
    with fs.open("s3fs/dir/large", "wb", block_size=5 << 20) as file:
        for at in range(0, len(LARGE), 1 << 20):
            file.write(LARGE[at : at + (1 << 20)])
    assert fs.info("s3fs/dir/large")["size"] == len(LARGE)
    assert fs.info("s3fs/dir/large")["ETag"].endswith('-3"'), "not in parts"
    with fs.open("s3fs/dir/large", "rb", block_size=1 << 20) as file:
        file.seek(7_000_000)
        assert file.read(10) == LARGE[7_000_000:7_000_010]
    fs.copy("s3fs/dir/large", "s3fs/copy")
    assert fs.cat_file("s3fs/copy") == LARGE
    assert sorted(fs.find("s3fs")) == ["s3fs/copy", "s3fs/dir/large", "s3fs/dir/ä b"]
    assert sorted(fs.ls("s3fs", detail=False)) == ["s3fs/copy", "s3fs/dir"]
    with urllib.request.urlopen(fs.sign("s3fs/dir/ä b"), timeout=20) as answer:
        assert answer.read() == SMALL
    fs.rm("s3fs", recursive=True)
    assert "s3fs" not in fs.ls("", detail=False, refresh=True)


if __name__ == "__main__":
    main()
