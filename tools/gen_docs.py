"""Writes the generated pages: docs/protocol/messages.md from sector.wire, docs/cli.md and
docs/cumulus-cli.md from the commands, docs/s3-compat.md from the table of operations.

`gen_docs.py` writes them; `gen_docs.py --check` ends with status 1 if a page is not what it would write.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sector.wire
from cumulus.cli import PROGRAM as CUMULUS
from cumulus.rest.request import Operation
from cumulus.rest.table import OPERATIONS
from sector.cli.main import PROGRAM as SECTOR
from sector.cli.program import LazyGroup, Program
from sector.wire.base import REGISTRY, Request

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by tools/gen_docs.py. Do not edit: change the source and run it again. -->"
MESSAGES_INTRO = """\
Every request has a number, which is the GMP method (or the tag of a TLS frame) and is never used again
for another one. Bodies are msgpack arrays in the order of the fields. Fields are only added at the end,
with a default; receivers ignore extra ones. Bounds are checked before anything else happens; a body that
breaks one is refused with the error `protocol`. *Safe* = a client may repeat the request when an answer
was lost."""
CLI_INTRO = """\
Exit status: 0 success, 1 refused or failed, 2 wrong use, 130 on Ctrl-C, 143 and 129 on SIGTERM and SIGHUP,
which do what Ctrl-C does. Errors are one line on standard
error; `--json` prints one JSON document, a refusal `{"error": {"code", "message", "hint"}}`. Settings come
from options, then `SECTOR_MASTER`, `SECTOR_USER`, `SECTOR_PASSWORD_FILE`, then the file that `sector login`
and `sector up` write (`SECTOR_CONFIG`, default `~/.config/sector/client.toml`). `SECTOR_DEBUG=1` adds the
traceback to an error that is the program's own fault. `SECTOR_PORTS=20000-20999` is the range in which
`sector up --port-base 0` looks for free ports."""
CUMULUS_INTRO = """\
Exit status: 0 success, 1 refused or failed, 2 wrong use, 130 on Ctrl-C, 143 and 129 on SIGTERM and SIGHUP,
which do what Ctrl-C does. Errors are one line on standard
error; `--json` prints one JSON document, a refusal `{"error": {"code", "message", "hint"}}`. Which Cumulus
is meant comes from `--dir` or `--config`, then from `CUMULUS_DIR` or `CUMULUS_CONFIG`;
two at once are refused. `CUMULUS_DEBUG=1` adds the traceback to an error that is the program's own fault.
What is done with the commands is in
[guide/cumulus-admin.md](guide/cumulus-admin.md)."""
COMPAT_INTRO = """\
Made from the table of operations in `cumulus/rest/table.py`. *yes*: as Amazon S3 has it; *differs*: the note
says in what; *no*: answered with 501 `NotImplemented`. A method that a resource does not have is answered
with 405 `MethodNotAllowed` and changes nothing; unknown query parameters are ignored.

What holds for all operations:

- Addresses: path style, and virtual-host style below `[server] domain`. Region and location constraint must
  be the server's.
- Signatures: version 4 (header, presigned, signed and unsigned chunks, trailers); version 2 if `allow_sigv2`
  is set. No temporary credentials.
- Keys are up to 1,024 bytes of UTF-8, also those with empty segments, `.` and `..`.
- One storage class: others that are read at once are accepted by name, and objects are listed as STANDARD;
  archives (GLACIER, DEEP_ARCHIVE) are refused. No server-side encryption: a request for it is refused, not
  ignored.
- Canned ACLs are S3's without `aws-exec-read` and `log-delivery-write`: nobody is there whom they mean.
- The ETag of an object in one piece is its MD5 sum (`etag = "md5"`). A file that was made in the directory
  has an ETag ending in `-0` until it was hashed.
- Checksums are CRC-32, CRC-32C, CRC-64/NVME, SHA-1 and SHA-256; S3's later ones (SHA-512, MD5 beside
  `Content-MD5`, XXHash) are refused, not ignored. An object without a checksum of its own gets none; S3 would
  add CRC-64/NVME.
- What is put anonymously belongs to the bucket's owner, and gets no ACL but `private` unless a policy gives
  everybody `s3:PutObjectAcl`; in S3 it belongs to nobody, who may give it any.
- A sub-resource of buckets (`?cors`, `?policy` …) asked of a key is a 400; S3 asks the bucket for some.
- Errors beyond S3's: 403 `QuotaExceeded`, 507 `StorageFull`, 405 `ReadOnlyStorage`. An answer to HEAD has no
  document: code and text of an error are in `x-minio-error-code` and `-desc`, where some clients look.
- A signed request without a body may leave out `x-amz-content-sha256`; S3 refuses it.
- A copy or a completion that takes more than 15 s begins its answer with 200 and blanks, as in S3; an error
  is then in the document, and headers of the object are missing (decision 0236).
- In the query of a URL signed in advance every `x-amz-…` counts as that header, tags too, but for checksums
  of the body (decision 0198)."""
COMPAT_CLIENTS = """## Clients

Unmodified clients that put, get, list, copy, upload in parts, sign in advance (where they can) and delete:
those of `./dev test` on plain files, fsspec and a Sector cluster, those of `./dev interop`, which fetches
them, on plain files and a Sector cluster; Hadoop also runs a MapReduce job. Without `s3v4` botocore signs
URLs by version 2. `cumulus key add USER --as aws`, `s3cmd` or `rclone` writes all of it. Which of them follow
a redirection: `guide/cumulus-redirect.md`.

| client | in | what it is told beside address and key |
| --- | --- | --- |
| boto3, awscli | `./dev test` | path style; `signature_version = "s3v4"` for URLs signed in advance |
| s3cmd | `./dev test` | `host_bucket` the same as `host_base`; its `signurl` needs `allow_sigv2` |
| rclone | `./dev test` | `provider = Other`, `list_url_encode = true` |
| restic | `./dev test` | `s3:http://HOST:PORT/BUCKET/PATH` |
| s3fs | `./dev test` | `config_kwargs={"signature_version": "s3v4"}` for `sign` |
| curl `--aws-sigv4` | `./dev test` | with a body `-H "x-amz-content-sha256: UNSIGNED-PAYLOAD"` or its hash |
| pyarrow | `./dev interop` | `endpoint_override`, `scheme`, `region` |
| obstore | `./dev interop` | `virtual_hosted_style_request=False`, `allow_http` without TLS |
| minio-py | `./dev interop` | `region`, `secure=False` without TLS |
| Hadoop s3a | `./dev interop` | `fs.s3a.path.style.access`, `fs.s3a.endpoint.region` |"""
GROUPS = (
    (0x0001, 0x00FF, "TLS channels: login, join, security server"),
    (0x0100, 0x01FF, "Administration: client to master"),
    (0x0200, 0x02FF, "Files: client to master"),
    (0x0300, 0x03FF, "Master and slaves"),
    (0x0400, 0x04FF, "Sphere"),
)


# messages ---------------------------------------------------------------------------------------------
def load_wire() -> None:
    """Import every module of sector.wire, so that the registry is whole."""
    for module in pkgutil.iter_modules(sector.wire.__path__):
        importlib.import_module(f"sector.wire.{module.name}")


def bounds(meta: msgspec.Meta, sized: bool) -> str:
    """The limits of one annotation as text."""
    if meta.pattern is not None:
        return f"`{meta.pattern}`".replace("|", "\\|")
    low = meta.min_length if sized else meta.ge if meta.ge is not None else meta.gt
    high = meta.max_length if sized else meta.le if meta.le is not None else meta.lt
    if low is not None and low == high:
        return f"{low}"
    if low is None and high is None:
        return ""
    if high is None:
        return f"≥ {low}" if meta.gt is None else f"> {low}"
    if low in (None, 0) and sized:
        return f"≤ {high}"
    return f"{low}…{high}" if low is not None else f"≤ {high}"


def type_text(kind: Any, used: set[type]) -> str:
    """A field's type with its bounds; the structs it names are added to `used`."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        text = type_text(inner, used)
        sized = inner in (str, bytes) or get_origin(inner) in (list, dict)
        limits = [bounds(meta, sized) for meta in metas if isinstance(meta, msgspec.Meta)]
        limits = [limit for limit in limits if limit]
        return f"{text} ({', '.join(limits)})" if limits else text
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (list, tuple, set):
        return f"list of {type_text(arguments[0], used)}"
    if origin is dict:
        return f"map of {type_text(arguments[0], used)} to {type_text(arguments[1], used)}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(argument, used) for argument in arguments)
    if kind is type(None):
        return "nil"
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
        used.add(kind)
        return link(kind)
    return {str: "text", bytes: "bytes", int: "integer", float: "float", bool: "truth"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def link(cls: type) -> str:
    """A link to the section of a message or value."""
    return f"[{cls.__name__}](#{cls.__name__.lower()})"


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """What stands in for a missing field."""
    if field.default is not msgspec.NODEFAULT:
        value = field.default
        return f"`{value!r}`" if not isinstance(value, msgspec.Struct) else f"`{tuple_text(value)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()!r}`"
    return ""


def tuple_text(value: msgspec.Struct) -> str:
    """A shared value as it travels."""
    return repr(list(msgspec.structs.astuple(value)))


def fields_table(cls: type[msgspec.Struct], used: set[type]) -> list[str]:
    """The fields in wire order."""
    fields = msgspec.structs.fields(cls)
    if not fields:
        return ["No fields.", ""]
    hints = typing.get_type_hints(cls, include_extras=True)
    lines = ["| field | type and bounds | default |", "| --- | --- | --- |"]
    for field in fields:
        lines.append(f"| {field.name} | {type_text(hints[field.name], used)} | {default_text(field)} |")
    return [*lines, ""]


def doc_of(cls: type) -> list[str]:
    """A class's own docstring as one paragraph."""
    text = cls.__dict__.get("__doc__") or ""
    words = re.sub(r" ?\((spec/|design)[^)]*\)", "", " ".join(text.split()))
    return [words.replace("<", "\\<").replace("*", "\\*"), ""] if words else []


def group_of(number: int) -> str:
    """The heading that a message number belongs to."""
    return next((title for low, high, title in GROUPS if low <= number <= high), "Other")


def structs_section(requests: list[type[Request]], used: set[type]) -> list[str]:
    """Replies and shared values, each once, by name; grows while they name further ones."""
    done: dict[str, list[str]] = {}
    waiting = {request.REPLY for request in requests} | used
    while waiting:
        cls = min(waiting, key=lambda one: one.__name__)
        waiting.discard(cls)
        if cls.__name__ in done:
            continue
        more: set[type] = set()
        done[cls.__name__] = [f"### {cls.__name__}", "", *doc_of(cls), *fields_table(cls, more)]
        waiting |= {one for one in more if one.__name__ not in done}
    return [line for name in sorted(done) for line in done[name]]


def messages_page() -> str:
    """docs/protocol/messages.md."""
    load_wire()
    requests = [REGISTRY[number] for number in sorted(REGISTRY)]
    used: set[type] = set()
    lines = [
        "# Control messages",
        "",
        NOTE,
        "",
        *MESSAGES_INTRO.splitlines(),
        "",
    ]
    titles = list(dict.fromkeys(group_of(request.NUMBER) for request in requests))
    details: list[str] = []
    for title in titles:
        lines += [f"**{title}**", "", "| number | request | reply | safe |", "| --- | --- | --- | --- |"]
        details += [f"## {title}", ""]
        for request in (one for one in requests if group_of(one.NUMBER) == title):
            name, reply, number = request.__name__, link(request.REPLY), f"{request.NUMBER:#06x}"
            safe = "yes" if request.SAFE else ""
            lines.append(f"| {number} | {link(request)} | {reply} | {safe} |")
            details += [f"### {name}", "", f"`{number}`, answered by {reply}.", ""]
            details += [*doc_of(request), *fields_table(request, used)]
        lines.append("")
    tail = ["## Replies and shared values", "", *structs_section(requests, used)]
    return "\n".join([*lines, *details, *tail]).rstrip() + "\n"


# commands ---------------------------------------------------------------------------------------------
def commands(command: click.Command, path: str) -> typing.Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members."""
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name=path)
        for name in command.list_commands(ctx):
            member = command.get_command(ctx, name)
            if member is not None:
                yield from commands(member, f"{path} {name}")


def help_text(command: click.Command, path: str) -> str:
    """What `--help` prints, at a fixed width."""
    *above, name = path.split(" ")
    parent = click.Context(click.Group(name=" ".join(above)), info_name=" ".join(above)) if above else None
    ctx = click.Context(
        command, info_name=name, parent=parent, max_content_width=100, terminal_width=100,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    lines = command.get_help(ctx).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def cli_page(program: Program, intro: str) -> str:
    """docs/cli.md, docs/cumulus-cli.md."""
    name, command = program.name, program.command
    assert isinstance(command, LazyGroup)
    title = "Commands" if name == "sector" else "Commands of Cumulus"
    lines = [f"# {title}", "", NOTE, "", *intro.splitlines(), "", "| command | what |", "| --- | --- |"]
    lines += [f"| [`{name} {one}`](#{name}-{one}) | {text} |" for one, (_, text) in command.table.items()]
    for path, found in commands(command, name):
        lines += ["", f"## {path}", "", "```text", help_text(found, path), "```"]
    return "\n".join(lines) + "\n"


def compat_page() -> str:
    """docs/s3-compat.md."""
    lines = ["# Compatibility with Amazon S3", "", NOTE, "", *COMPAT_INTRO.splitlines(), ""]
    lines += COMPAT_CLIENTS.splitlines()
    titles = {"service": "Service", "bucket": "Buckets", "object": "Objects"}
    for level, title in titles.items():
        lines += ["", f"## {title}", "", "| operation | request | here | note |", "| --- | --- | --- | --- |"]
        lines += [compat_row(row) for row in OPERATIONS if row.level == level]
    return "\n".join(lines) + "\n"


def compat_row(row: Operation) -> str:
    """One operation."""
    path = {"service": "/", "bucket": "/BUCKET", "object": "/BUCKET/KEY"}[row.level]
    query = f"?{row.query}" if row.query else ""
    header = f" with `{row.header}`" if row.header else ""
    return f"| {row.name} | `{row.method} {path}{query}`{header} | {row.status} | {row.note} |"


PAGES = {
    "docs/protocol/messages.md": messages_page,
    "docs/s3-compat.md": compat_page,
    "docs/cli.md": lambda: cli_page(SECTOR, CLI_INTRO),
    "docs/cumulus-cli.md": lambda: cli_page(CUMULUS, CUMULUS_INTRO),
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say which are out of date."""
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"{name} is out of date: run tools/gen_docs.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
