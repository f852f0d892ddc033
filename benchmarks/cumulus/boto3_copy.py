"""One managed transfer by boto3 with its defaults: `boto3_copy.py up|down URL BUCKET KEY FILE` with the keys
in the environment. Prints the seconds it took."""

from __future__ import annotations

import sys
import time

import boto3
from botocore.config import Config


def main() -> None:
    """Copy and tell."""
    way, url, bucket, key, file = sys.argv[1:]
    client = boto3.client("s3", endpoint_url=url, config=Config(s3={"addressing_style": "path"}))
    began = time.monotonic()
    if way == "up":
        client.upload_file(file, bucket, key)
    else:
        client.download_file(bucket, key, file)
    print(time.monotonic() - began)


if __name__ == "__main__":
    main()
