"""`udt:` for Twisted's endpoint strings, found through the plugin `twisted/plugins/sector_udt.py`.

Client:      udt:HOST:PORT[:OPTION=VALUE…]         (`udt:192.0.2.7:9000:cc=bbr`, `udt:host=\\:\\:1:port=9000`)
Rendezvous:  udt:rendezvous=HOST\\:PORT:local=PORT[:tag=NUMBER][:OPTION=VALUE…]
Server:      udt:PORT[:interface=ADDRESS][:backlog=NUMBER][:OPTION=VALUE…]

Options of all: `cc` congestion control; `mss` bytes of a packet; `maxBandwidth` bytes per second; `timeout`
seconds to connect; `idleTimeout` seconds of silence; `sendBuffer` and `receiveBuffer` bytes; `kind` "stream"
or "message"; `keyFile` a file with 32 bytes, or 64 hexadecimal digits, that both ends have: all is sealed,
and who has not the key is refused. A colon inside a value is written `\\:`. Wrong strings raise ValueError,
which names the option.

Loaded by every program that looks for endpoint plugins, hence nothing heavy at the top.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import (
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin
from zope.interface import implementer

_KINDS = {"stream": 1, "message": 2}
KEY_BYTES = 32


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not low <= value <= high:
        raise ValueError(f"{text} is not within {low} and {high}")
    return value


def _whole(text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(_number(text, low, high))


def _kind(text: str) -> int:
    if text not in _KINDS:
        raise ValueError(f"{text!r} is neither stream nor message")
    return _KINDS[text]


def read_key(path: str) -> bytes:
    """The key in a file: 32 bytes as they are, or as 64 hexadecimal digits (`openssl rand -hex 32`). Raises
    ValueError, also when others may read the file; OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise ValueError(f"others may read the key in {path}; chmod 600")
        data = file.read(4096)
    if len(data) == KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except (UnicodeDecodeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} holds neither {KEY_BYTES} bytes nor {2 * KEY_BYTES} hexadecimal digits")
    return key


def _key(path: str) -> bytes:
    try:
        return read_key(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _read(name: str, text: str, read: Callable[[str], Any]) -> Any:
    """The value of an option. Raises ValueError that names the option."""
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def port_number(text: str, low: int = 1, name: str = "port") -> int:
    """A UDP port, which errors call `name`. Raises ValueError."""
    port: int = _read(name, text, lambda text: _whole(text, low, 65535))
    return port


# option of a string -> field of UdtOptions and how its value is read
_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cc": ("cc", str),
    "mss": ("mss", lambda text: _whole(text, 576, 65535)),
    "maxBandwidth": ("max_bandwidth", lambda text: _whole(text, 1, 1 << 62)),
    "timeout": ("connect_timeout_s", lambda text: _number(text, 0.001, 86400)),
    "idleTimeout": ("idle_timeout_s", lambda text: _number(text, 0.001, 86400)),
    "sendBuffer": ("send_buffer", lambda text: _whole(text, 65536, 1 << 31)),
    "receiveBuffer": ("receive_buffer", lambda text: _whole(text, 65536, 1 << 31)),
    "kind": ("kind", _kind),
    "keyFile": ("key", _key),
}


def _options(given: dict[str, str], **fields: Any) -> Any:
    """UdtOptions of what is left of a string's arguments."""
    from sector._udt.transport import UdtOptions

    for name, text in given.items():
        if name not in _OPTIONS:
            raise ValueError(f"udt: has no option {name!r}; it knows {', '.join(sorted(_OPTIONS))}")
        field, read = _OPTIONS[name]
        fields[field] = _read(name, text, read)
    try:
        return UdtOptions(**fields)
    except ValueError as error:
        raise ValueError(f"udt: {error}") from None


def _named(args: tuple[str, ...], names: tuple[str, ...], given: dict[str, str]) -> None:
    """Positional arguments get their names."""
    if len(args) > len(names):
        raise ValueError(f"too much in the string: {':'.join(args[len(names) :])!r}")
    for name, value in zip(names, args, strict=False):
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = value


def _required(given: dict[str, str], name: str) -> str:
    value = given.pop(name, "")
    if not value:
        raise ValueError(f"udt: needs {name}")
    return value


def host_and_port(text: str) -> tuple[str, int]:
    """ "host:9000" or "[::1]:9000". Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port_number(port)


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor)
class UdtClientParser:
    """`udt:` of clientFromString: a client, or with `rendezvous=` both sides towards each other."""

    prefix = "udt"

    def parseStreamClient(self, reactor: Any, *args: str, **kwargs: str) -> Any:
        """The endpoint. Raises ValueError."""
        from sector._udt.endpoints import UdtClientEndpoint, UdtRendezvousEndpoint

        given = dict(kwargs)
        if "rendezvous" in given:
            _named(args, (), given)
            host, port = _read("rendezvous", given.pop("rendezvous"), host_and_port)
            local = port_number(_required(given, "local"), name="local")
            tag = _read("tag", given.pop("tag", "0"), lambda text: _whole(text, 0, 0xFFFFFFFF))
            return UdtRendezvousEndpoint(reactor, local, host, port, _options(given, tag=tag))
        _named(args, ("host", "port"), given)
        host, port = _required(given, "host"), port_number(_required(given, "port"))
        return UdtClientEndpoint(reactor, host, port, _options(given))


@implementer(IPlugin, IStreamServerEndpointStringParser)
class UdtServerParser:
    """`udt:` of serverFromString."""

    prefix = "udt"

    def parseStreamServer(self, reactor: Any, *args: str, **kwargs: str) -> Any:
        """The endpoint. Raises ValueError."""
        from sector._udt.endpoints import UdtServerEndpoint

        given = dict(kwargs)
        _named(args, ("port",), given)
        port = port_number(_required(given, "port"), low=0)
        interface = given.pop("interface", "") or "0.0.0.0"
        backlog = _read("backlog", given.pop("backlog", "128"), lambda text: _whole(text, 1, 65535))
        return UdtServerEndpoint(reactor, port, interface, _options(given), backlog=backlog)
