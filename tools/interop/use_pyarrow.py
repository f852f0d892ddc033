"""pyarrow against the service at argument 1: its file system, and a table in Parquet, a part of it read."""

from __future__ import annotations

import os
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

SIZE = 11 << 20


def main() -> None:
    """Put, get, list, copy, upload in parts, delete."""
    s3 = fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=sys.argv[1].removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
    )
    s3.create_dir("pyarrow")
    data = os.urandom(1 << 20) * 11
    with s3.open_output_stream("pyarrow/dir/ä b") as out:
        out.write(data)
    with s3.open_input_file("pyarrow/dir/ä b") as file:
        assert file.size() == SIZE
        assert file.read_at(10, 7_000_000) == data[7_000_000:7_000_010]
        assert file.read() == data
    s3.copy_file("pyarrow/dir/ä b", "pyarrow/copy")
    assert s3.get_file_info("pyarrow/copy").size == SIZE
    table = pa.table({"n": list(range(50_000)), "square": [n * n for n in range(50_000)]})
    ds.write_dataset(table, "pyarrow/table", format="parquet", filesystem=s3, max_rows_per_file=20_000,
                     max_rows_per_group=20_000)  # fmt: skip
    few = ds.dataset("pyarrow/table", filesystem=s3).to_table(filter=ds.field("n") == 49_999)
    assert few.column("square").to_pylist() == [49_999**2]
    assert pq.read_table("pyarrow/table", filesystem=s3, columns=["n"]).num_rows == 50_000
    found = s3.get_file_info(fs.FileSelector("pyarrow", recursive=True))
    assert {one.path for one in found if one.is_file} >= {"pyarrow/copy", "pyarrow/dir/ä b"}
    s3.delete_dir("pyarrow")
    assert s3.get_file_info("pyarrow").type == fs.FileType.NotFound


if __name__ == "__main__":
    main()
