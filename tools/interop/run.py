"""`./dev interop`: further S3 clients against Cumulus, on plain files and on a Sector cluster: pyarrow,
obstore, minio-py, and Hadoop's s3a with a MapReduce job. Fetches them (pinned) into build/interop.

A line for each client and backend; exit status 1 when one of them fails, with what it said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "interop"
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from cluster import running  # noqa: E402
from s3_server import Server, serving  # noqa: E402

PORTS = '[server]\nport = 0\n[admin]\nport = 0\n[log]\naccess = "access.log"\n'
WORDS = "Sector stores files and Sphere runs functions next to them and Cumulus serves them to all\n" * 40_000
LIMIT_S = 900


class Failed(Exception):
    """A client did not do what it should have done; the message says how it ended."""


def run(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What it printed. Raises `Failed`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=inherited | (env or {}), cwd=cwd
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[-1]}: no end after {LIMIT_S} s") from None
    if done.returncode:
        raise Failed(f"{' '.join(command[-3:])}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# what is fetched -------------------------------------------------------------------------------------------
def python() -> str:
    """The interpreter of an environment with the pinned packages."""
    wanted = (HERE / "requirements.txt").read_text()
    stamp, interpreter = WORK / "venv" / "stamp", WORK / "venv" / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        run([sys.executable, "-m", "venv", "--clear", str(WORK / "venv")])
        run([str(interpreter), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")])
        stamp.write_text(wanted)
    return str(interpreter)


def jars() -> list[Path]:
    """Hadoop's."""
    wanted, stamp, where = (HERE / "pom.xml").read_text(), WORK / "jars.stamp", WORK / "jars"
    if not stamp.exists() or stamp.read_text() != wanted:
        goal = [
            "dependency:copy-dependencies",
            f"-DoutputDirectory={where}",
            "-Dmdep.overWriteSnapshots=true",
        ]
        run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *goal])
        stamp.write_text(wanted)
    return sorted(where.glob("*.jar"))


# the clients -----------------------------------------------------------------------------------------------
def keys(server: Server) -> dict[str, str]:
    """In the environment, so that no command line has them."""
    return {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}


def bucket(server: Server, name: str) -> None:
    """Made with boto3."""
    import boto3
    from botocore.config import Config

    s3 = boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket=name)


def program(name: str) -> Callable[[Server], str]:
    """One of the programs beside this one; what it is a version of."""

    def use(server: Server) -> str:
        if name == "obstore":
            bucket(server, "obstore")
        run([python(), str(HERE / f"use_{name}.py"), server.url], keys(server))
        ask = f"import importlib.metadata as m; print(m.version({name!r}))"
        return f"{name} {run([python(), '-c', ask]).strip()}"

    return use


def hadoop(server: Server) -> str:
    """`hadoop fs -mkdir`, `-put`, the example job WordCount and `-get`, each as Hadoop's own main program."""
    bucket(server, "hadoop")
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        settings = {
            "fs.s3a.endpoint": server.url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.multipart.size": "5M",
            "fs.s3a.multipart.threshold": "5M",
            "hadoop.tmp.dir": f"{where}/tmp",
            "mapreduce.framework.name": "local",
        }
        rows = "".join(
            f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items()
        )
        (where / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
        (where / "words").write_text(WORDS)
        path = ":".join([scratch, *map(str, jars())])

        def java(main: str, *words: str) -> None:
            run(["java", "-Xmx512m", "-cp", path, f"org.apache.hadoop.{main}", *words], keys(server), where)

        (where / "back").mkdir()
        java("fs.FsShell", "-mkdir", "-p", "s3a://hadoop/in")
        java("fs.FsShell", "-put", "words", "s3a://hadoop/in/words")
        java("examples.WordCount", "s3a://hadoop/in", "s3a://hadoop/out")
        java("fs.FsShell", "-get", "s3a://hadoop/out/part-r-00000", "s3a://hadoop/in/words", "back/")
        if (where / "back" / "words").read_text() != WORDS:
            raise Failed("hadoop: what was put is not what was got")
        lines = (where / "back" / "part-r-00000").read_text().splitlines()
        if {word: int(count) for word, count in (line.split("\t") for line in lines)} != Counter(
            WORDS.split()
        ):
            raise Failed(f"hadoop: the words were counted wrong: {lines}")
    version = next(jar.stem for jar in jars() if jar.stem.startswith("hadoop-aws"))
    return f"{version}, put, wordcount, get"


CLIENTS: dict[str, Callable[[Server], str]] = {
    "pyarrow": program("pyarrow"),
    "obstore": program("obstore"),
    "minio-py": program("minio"),
    "hadoop": hadoop,
}


@contextmanager
def services() -> Iterator[dict[str, Server]]:
    """A Cumulus over plain files, and one over a Sector cluster of two slaves."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        base = Path(scratch)
        plain = stack.enter_context(serving(base / "plain", PORTS))
        (base / "cloud").mkdir()
        cloud = stack.enter_context(running(base / "cloud", slaves=2))
        storage = f'[storage]\nbackend = "sector:{cloud.dir}/client.toml"\n'
        yield {"posix": plain, "sector": stack.enter_context(serving(base / "over", PORTS + storage))}


def healthy(server: Server) -> bool:
    """Whether it serves, and has not failed inside."""
    page = f"http://127.0.0.1:{server.admin_port}/health"
    with urllib.request.urlopen(page, timeout=30) as answer:
        up = json.load(answer)["status"] == "ok"
    return up and "Traceback" not in server.log()


def main() -> int:
    """All clients, or those that are named on the command line."""
    wanted = sys.argv[1:] or list(CLIENTS)
    unknown = [name for name in wanted if name not in CLIENTS]
    if unknown:
        print(f"no client {', '.join(unknown)}; there are: {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        python()
        jars()
    except Failed as bad:
        print(f"the clients cannot be fetched: {bad}", file=sys.stderr)
        return 1
    failures = []
    with services() as servers:
        for name in wanted:
            for backend, server in servers.items():
                began = time.monotonic()
                try:
                    said = CLIENTS[name](server)
                    if not healthy(server):
                        raise Failed(f"the service is not well: {server.log()[-2000:]}")
                    how = "ok"
                except Failed as bad:
                    said, how = "", "FAILED"
                    failures.append(f"{name} on {backend}: {bad}")
                print(
                    f"{name:<10} {backend:<7} {how:<6} {time.monotonic() - began:4.0f} s  {said}", flush=True
                )
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{len(wanted) * 2 - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
