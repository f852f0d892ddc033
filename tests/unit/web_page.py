"""The admin page over a database of its own, and a visitor with a cookie, for tests without sockets."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlencode

from cumulus.backends.memory import MemoryStore
from cumulus.config import parse_config
from cumulus.index.admin import SqlAdmin
from cumulus.index.registry import make_admin, make_index
from cumulus.model import Acl, Bucket, User
from cumulus.secrets import Keyring, new_user_id
from cumulus.web.app import App
from cumulus.web.messages import Answer, Asked
from cumulus.web.view import Held

HOST = "127.0.0.1:8889"
SECRET = "a-secret-of-the-administrator"
NASTY = "<script>alert('x')</script>\"&"


def fields(text: str, action: str) -> dict[str, str]:
    """What a browser sends of a form of a page when nothing is typed into it."""
    found = re.search(rf'<form method="post" action="/ui/{re.escape(action)}">(.*?)</form>', text)
    assert found, action
    sent = {}
    for box in re.findall("<input [^>]*>", found[1]):
        if 'type="checkbox"' not in box or " checked" in box:
            value = re.search(' value="([^"]*)"', box)
            name = re.search(' name="([^"]*)"', box)
            assert name, box
            sent[name[1]] = unescape(value[1]) if value else ""
    for name, options in re.findall('<select name="([^"]*)">(.*?)</select>', found[1]):
        chosen = re.search('value="([^"]*)" selected', options) or re.search('value="([^"]*)"', options)
        sent[name] = chosen[1] if chosen else ""
    del sent["csrf"]
    return sent


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Visitor:
    """A browser that keeps its cookie and finds the token of forms."""

    def __init__(self, app: App, clock: Clock, audit: list[str]) -> None:
        self.app, self.clock, self.audit = app, clock, audit
        self.token = self.csrf = ""
        self.peer = "127.0.0.1"

    def asked(self, method: str, path: str, **fields: str) -> Asked:
        """A request as it sends it."""
        url, _, query = path.partition("?")
        return Asked(
            method=method,
            path=tuple(unquote(part) for part in url.split("/") if part),
            query=query,
            host=HOST,
            origin=f"http://{HOST}" if method == "POST" else "",
            content_type="application/x-www-form-urlencoded",
            token=self.token,
            peer=self.peer,
            body=urlencode({"csrf": self.csrf, **fields}).encode(),
        )

    def handle(self, asked: Asked) -> Answer:
        """Ask, and keep what is to be kept."""
        answer = self.app.handle(asked)
        for name, value in answer.headers:
            if name == "Set-Cookie":
                self.token = value.partition("=")[2].partition(";")[0]
        if found := re.search(rb'name="csrf" value="([^"]*)"', answer.body):
            self.csrf = found[1].decode()
        return answer

    def get(self, path: str = "") -> str:
        """A page that is there."""
        answer = self.handle(self.asked("GET", path))
        assert answer.status == 200, answer
        return answer.body.decode()

    def post(self, path: str, status: int = 303, **fields: str) -> str:
        """Send a form; the page that it leads to, or that refuses it."""
        answer = self.handle(self.asked("POST", path, **fields))
        assert answer.status == status, answer.body.decode()
        if status != 303:
            return answer.body.decode()
        return self.get(dict(answer.headers)["Location"].removeprefix("/ui"))

    def log_in(self, key: str = "ADMIN", secret: str = SECRET) -> str:
        """As the administrator."""
        return self.post("login", access_key=key, secret=secret)


class Page:
    """The page over a database of its own."""

    def __init__(self, where: Path, text: str = "") -> None:
        self.config = parse_config(text, str(where / "cumulus.toml"))
        keyring = Keyring.create(where / "secret.key")
        self.index, self.directory = make_index(self.config.database_url, keyring, sync=False)
        self.admin: SqlAdmin = make_admin(self.config.database_url, keyring)
        self.store = MemoryStore()
        self.clock = Clock()
        self.audit: list[str] = []
        self.boss = User(id=new_user_id(), name="boss", admin=True)
        self.admin.add_user(self.boss)
        self.admin.add_key("boss", "ADMIN", SECRET)
        self.held = Held(
            self.config, self.index, self.directory, self.store, self.admin, lambda: (1, 1), self._heard
        )
        self.app = App(self.held, self.clock)

    def _heard(self, who: str, peer: str, what: str) -> None:
        self.audit.append(f"{who}@{peer}: {what}")

    def visitor(self) -> Visitor:
        """Nobody yet."""
        return Visitor(self.app, self.clock, self.audit)

    def forget(self) -> None:
        """What was changed counts at once."""
        self.directory.forget()  # type: ignore[attr-defined]

    def user(self, name: str, key: str = "", **fields: object) -> User:
        """An ordinary user."""
        made = User(id=new_user_id(), name=name, **fields)  # type: ignore[arg-type]
        self.admin.add_user(made)
        if key:
            self.admin.add_key(name, key, SECRET)
        return made

    def bucket(self, name: str, owner: User) -> None:
        """An empty bucket."""
        self.index.add_bucket(Bucket(name=name, owner=owner.id, created_ns=1, acl=Acl(owner=owner.id)))
        self.store.create_bucket(name)

    def close(self) -> None:
        """Give back the database."""
        self.admin.close()
        self.index.close()
        self.directory.close()
