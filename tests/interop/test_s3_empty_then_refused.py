"""boto3 asks before it sends a body, also an empty one; what it is told of the next upload over the same
connection is what was said of that."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

sys.path.append(str(Path(__file__).resolve().parents[1]))

from s3_server import PORTS, boto, serving


def test_an_upload_after_an_empty_one_is_told_its_own_outcome(tmp_path: Path) -> None:
    """Without an answer to its question boto3 kept the 200 of the empty upload for the next: a refusal of
    that was a success, and its ETag was lost."""
    with serving(tmp_path / "D", PORTS) as server:
        s3 = boto(server, max_pool_connections=1)
        s3.create_bucket(Bucket="bkt")
        for key in ("bkt", "nothing"):
            done = s3.put_object(Bucket="bkt", Key=key, Body=io.BytesIO(b""))
            assert done["ETag"] == '"d41d8cd98f00b204e9800998ecf8427e"'
        with pytest.raises(ClientError, match="BadDigest"):
            s3.put_object(
                Bucket="bkt", Key="k", Body=io.BytesIO(b"bytes"), ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg=="
            )
        s3.put_object(Bucket="bkt", Key="nothing", Body=io.BytesIO(b""))
        assert "ETag" in s3.put_object(Bucket="bkt", Key="k", Body=io.BytesIO(b"bytes"))
        assert s3.get_object(Bucket="bkt", Key="k")["Body"].read() == b"bytes"
