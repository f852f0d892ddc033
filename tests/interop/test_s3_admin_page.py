"""The admin page as a person meets it: a service, a browser, real forms; and what HTTP alone tries."""

from __future__ import annotations

import http.client
import io
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.exceptions import ClientError
from browser import Browser, chromium
from s3_server import Server, boto, cumulus, make, serving, started
from twisted.internet.testing import MemoryReactorClock
from twisted.web.test.requesthelper import DummyRequest

from cumulus.web.messages import HEADERS
from cumulus.web.resource import QUEUE, THREADS, AdminPage

PORTS = "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n"
NASTY = "</td><script>document.title = 'broken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of two workers."""
    with serving(tmp_path_factory.mktemp("page") / "D", PORTS) as running:
        yield running


def ask(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request without a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=20)
    try:
        connection.request(method, path, body, {key.replace("_", "-"): text for key, text in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def until_refused(client: Any) -> str:
    """The error of uploads that do not fit: a quota holds within a second."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            client.put_object(Bucket="data", Key="b", Body=bytes(2_000_000))
        except ClientError as bad:
            return str(bad.response["Error"]["Code"])
    return ""


def log_in(browser: Browser, server: Server) -> None:
    """As the administrator, by the form."""
    browser.goto(f"http://127.0.0.1:{server.admin_port}/")
    browser.fill("Access key", server.key)
    browser.fill("Secret key", server.secret)
    assert browser.press("Log in") == 200 and "What it holds" in browser.text


def test_the_port_that_clients_use_is_shown(server: Server) -> None:
    """Where the settings say any free one; the settings of clients have it, too."""
    with chromium() as browser:
        log_in(browser, server)
        assert f"http://127.0.0.1:{server.port}" in browser.text
        browser.goto(f"http://127.0.0.1:{server.admin_port}/ui/users")
        browser.unfold("Add a user")
        browser.fill("Name", "portia")
        browser.press("Add user")
        assert f"endpoint_url = http://127.0.0.1:{server.port}\n" in browser.js("document.body.textContent")


def new_key(browser: Browser) -> tuple[str, str]:
    """What the page shows once."""
    found = browser.js('["access", "secret"].map(x => document.getElementById(`new-${x}-key`).textContent)')
    return found[0], found[1]


def test_an_administrator_at_work(server: Server) -> None:
    """A login that is refused, a user with a nasty name, a key that works at once, a quota that holds, usage,
    a key that is removed: all by the keyboard, without a complaint of the browser."""
    with chromium() as browser:
        assert browser.goto(f"http://127.0.0.1:{server.admin_port}/ui/users") == 200
        assert browser.url.endswith("/ui/login")
        browser.fill("Access key", server.key)
        browser.fill("Secret key", "not the secret")
        assert browser.press("Log in") == 403 and "Not let in" in browser.text
        log_in(browser, server)
        assert "2 of 2 serve" in browser.text
        assert browser.js("document.cookie") == ""
        assert (
            browser.goto(f"http://127.0.0.1:{server.admin_port}/ui") == 200
            and "What it holds" in browser.text
        )

        browser.press("Users")
        browser.unfold("Add a user")
        browser.fill("Name", "alice'&")
        browser.fill("Full name", NASTY)
        browser.fill("E-mail", "alice@example.org")
        browser.tick("Administrator: may do everything, also here")
        browser.tick("Administrator: may do everything, also here")
        assert browser.press("Add user") == 200
        key, secret = new_key(browser)
        assert NASTY in browser.text and browser.js("document.title") == "User alice'& · Cumulus"
        browser.unfold("As settings of aws")
        assert f"aws_secret_access_key = {secret}" in browser.text

        alice = boto(server, key, secret)
        alice.create_bucket(Bucket="data")
        alice.put_object(Bucket="data", Key="a", Body=bytes(3_000_000))

        browser.unfold("Change", 1)
        browser.fill("Bytes", "4M")
        assert browser.press("Set quota") == 200
        assert "hard 4,000,000 bytes" in browser.text and "3.0 MB of 4.0 MB" in browser.text
        assert secret not in browser.text
        assert until_refused(alice) == "QuotaExceeded"
        browser.press("Usage")
        assert "alice'&" in browser.text and "of 4.0 MB" in browser.text
        browser.press("Buckets")
        browser.press("data")
        assert "alice'&" in browser.text and "Versioning" in browser.text

        browser.press("alice'&")
        browser.unfold("Remove")
        browser.tick("Yes")
        assert browser.press("Remove") == 200 and f"key {key} removed" in browser.text
        browser.press("Log out")
        assert browser.url.endswith("/ui/login")
        browser.goto(f"http://127.0.0.1:{server.admin_port}/ui/users")
        assert browser.url.endswith("/ui/login")
        assert browser.said == []
    said = server.log()
    assert secret not in said and server.secret not in said
    for what in ("was refused", "logged in", "user alice'& added", "quota of user alice'&", "logged out"):
        assert what in said


def test_users_in_a_file_are_shown(tmp_path: Path) -> None:
    """With keys, quotas and groups, but nothing to press that would change them; what the file says later is
    shown later."""
    directory = tmp_path / "D"
    make(directory, PORTS + "[auth]\nsource = 'file'\nfile = 'users'\n")
    lines = "root ROOTKEY secret-of-root admin\nalice ALICEKEY secret-of-alice groups=lab display=Alice\n"
    (directory / "users").touch(0o600)
    (directory / "users").write_text(lines)
    cumulus("--dir", str(directory), "quota", "set", "alice", "--bytes", "4M")
    with started(directory, "ROOTKEY", "secret-of-root") as server, chromium() as browser:
        boto(server, "ALICEKEY", "secret-of-alice").create_bucket(Bucket="data")
        log_in(browser, server)
        assert f"the file {directory}/users" in browser.text
        browser.press("Users")
        assert "Alice" in browser.text and f"kept in the file {directory}/users" in browser.text
        assert browser.js("document.querySelectorAll('main form:not(.search)').length") == 0
        browser.press("alice")
        for shown in ("ALICEKEY", "4.0 MB", "lab", "data", "cumulus quota"):
            assert shown in browser.text, shown
        assert "secret-of" not in browser.js("document.documentElement.outerHTML")
        assert browser.js("document.querySelectorAll('main form').length") == 0
        browser.press("lab")
        assert "alice" in browser.text
        browser.press("Usage")
        assert "of 4.0 MB" in browser.text
        (directory / "users").write_text(lines + "bob BOBKEY secret-of-bob\n")
        end = time.monotonic() + 20
        while "bob" not in browser.text and time.monotonic() < end:
            browser.press("Users")
        assert "bob" in browser.text and browser.said == []


def test_tab_leads_through_the_page(server: Server) -> None:
    """The first Tab is the way to the content, all that can be pressed comes in turn, and shows its focus."""
    with chromium() as browser:
        log_in(browser, server)
        browser.press("Users")
        browser.unfold("Add a user")
        browser.fill("Name", "tabitha")
        browser.press("Add user")
        browser.press("Users")
        seen = []
        for _ in range(13):
            browser.key("Tab")
            seen.append(browser.js("document.activeElement.textContent || document.activeElement.type"))
            assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none", seen
        assert seen[:8] == [
            "To the content", "Cumulus", "Overview", "Users", "Groups", "Buckets", "Usage", "Log out",
        ]  # fmt: skip
        assert seen[8:11] == ["Add a user", "search", "Search"]
        browser.js("document.querySelector('.skip').focus()")
        browser.key("Enter")
        assert browser.js("document.activeElement.id") == "content"


def size(browser: Browser, width: int) -> None:
    """A window of that width."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )


def test_a_full_name_without_a_space_keeps_to_its_cell(server: Server) -> None:
    """240 letters break there; the other columns keep their words and the window its width, and what looks
    for names stays in the column on a narrow one."""
    with chromium() as browser:
        size(browser, 1100)
        log_in(browser, server)
        browser.press("Users")
        browser.unfold("Add a user")
        browser.fill("Name", "much")
        browser.press("Add user")
        browser.unfold("Change", 1)
        browser.fill("Bytes", "888.8G")
        browser.press("Set quota")
        browser.press("Users")
        browser.unfold("Add a user")
        browser.fill("Name", "longname")
        browser.fill("Full name", "W" * 240)
        browser.fill("E-mail", "long.name@example.org")
        browser.tick("Administrator: may do everything, also here")
        assert browser.press("Add user") == 200
        browser.press("Users")
        lines = "[...document.querySelectorAll('td .state, td a')].map(e => e.getClientRects().length)"
        heights = "[...document.querySelectorAll('td .state')].map(e => e.offsetHeight)"
        assert set(browser.js(lines)) == {1} and max(browser.js(heights)) < 30
        inner = "[...document.querySelectorAll('td')].map(e => e.scrollWidth - e.clientWidth)"
        assert max(browser.js(inner)) <= 0
        wide = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('.wide'))"
        assert browser.js(wide) <= 0
        size(browser, 320)
        browser.press("Users")
        ends = "document.querySelector('.search button').getBoundingClientRect().right"
        assert browser.js(ends) <= browser.js("document.querySelector('.wide').getBoundingClientRect().right")
        assert browser.js("document.documentElement.scrollWidth - innerWidth") <= 0
        assert set(browser.js(lines)) == {1} and max(browser.js(heights)) < 30


def test_forms_keep_to_a_narrow_window(server: Server) -> None:
    """All that is folded is open, in a window of 320 pixels, or of 640 at twice the size: nothing is to be
    looked for beyond its right end but what is in a table, which moves by itself."""
    with chromium() as browser:
        log_in(browser, server)
        base = f"http://127.0.0.1:{server.admin_port}/ui"
        browser.goto(f"{base}/users")
        user = browser.js('document.querySelector("td a").href')
        for url in (f"{base}/users", user, f"{base}/groups", f"{base}/buckets"):
            browser.goto(url)
            size(browser, 320)
            browser.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            out = (
                "[...document.querySelectorAll('main input, main select, main button')].filter(e => "
                "!e.closest('.wide') && e.getBoundingClientRect().right > innerWidth).map(e => e.name)"
            )
            assert (browser.js(wide), browser.js(out)) == (0, []), url


def test_several_tabs_at_once(server: Server) -> None:
    """A tick is kept; what a form did not change is not undone; a form that comes after the logout or after
    its key has gone says so, and leads back."""
    with chromium() as browser:
        log_in(browser, server)
        browser.press("Users")
        browser.unfold("Add a user")
        browser.fill("Name", "tabs")
        browser.fill("Key expires", "garbage")
        browser.tick("Administrator: may do everything, also here")
        assert browser.press("Add user") == 400
        browser.fill("Key expires", "never")
        assert browser.press("Add user") == 200 and "user tabs added as administrator" in browser.text
        key, page = new_key(browser)[0], browser.url

        browser.unfold("Change")
        with browser.another_tab():
            browser.goto(page)
            browser.unfold("Change")
            browser.fill("Name", "tabulator")
            browser.fill("E-mail", "tab@example.org")
            assert browser.press("Save") == 200
        browser.fill("Weight", "7")
        assert browser.press("Save") == 200 and "User tabulator" in browser.text
        assert "tab@example.org" in browser.text and "user tabulator changed" in browser.text

        browser.unfold("Expire")
        browser.fill("Expires", "whenever")
        assert browser.press("Set") == 400
        assert browser.js("labelled('Expires')[0].value") == "whenever"
        assert browser.url.endswith(f"/ui/keys/{key}/expire")
        assert browser.goto(browser.url) == 200 and browser.url == page

        browser.unfold("Expire")
        with browser.another_tab():
            browser.goto(page)
            browser.unfold("Remove")
            browser.tick("Yes")
            assert browser.press("Remove") == 200
        browser.fill("Expires", "30d")
        assert browser.press("Set") == 404
        assert f"there is no key {key}" in browser.text and "User tabulator" in browser.text

        browser.goto(page)
        browser.unfold("Change")
        with browser.another_tab():
            browser.goto(page)
            browser.press("Log out")
        browser.fill("Weight", "9")
        assert browser.press("Save") == 200 and "Nothing was saved: the session had ended" in browser.text
        browser.fill("Access key", server.key)
        browser.fill("Secret key", server.secret)
        assert browser.press("Log in") == 200 and browser.url == page
        assert browser.js("labelled('Weight')[0].value") == "7" and browser.said == []


def test_what_http_alone_tries(server: Server) -> None:
    """Each answer has the headers that bind browsers; bodies that are no form of a page are not taken."""
    host = f"127.0.0.1:{server.admin_port}"
    answer, _ = ask(server, "GET", "/")
    assert answer.status == 302 and answer.headers["Location"] == "/ui/"
    for path, status in (("/", 302), ("/metrics", 200), ("/health", 200), ("/load", 200), ("/none", 404)):
        answer, _ = ask(server, "GET", path)
        assert answer.status == status and "Server" not in answer.headers, path
    for method, path, status in (
        ("GET", "/ui/login", 200),
        ("HEAD", "/ui/login", 200),
        ("GET", "/ui/static/page.js", 200),
        ("GET", "/ui/static/..%2fapp.py", 404),
        ("GET", "/ui/%ff", 400),
        ("GET", "/ui/users", 303),
        ("PUT", "/ui/users", 405),
        ("POST", "/ui/users", 403),
    ):
        answer, body = ask(server, method, path)
        assert answer.status == status, (method, path)
        assert all(answer.headers[name] == value for name, value in HEADERS)
        assert "Server" not in answer.headers and (not body or method != "HEAD")
    assert "max-age" in ask(server, "GET", "/ui/static/page.css")[0].headers["Cache-Control"]
    answer, _ = ask(server, "POST", "/ui/login", bytes(65537), Origin=f"http://{host}")
    assert answer.status == 413
    answer, _ = ask(server, "POST", "/ui/login", Origin=f"http://{host}", Transfer_Encoding="chunked")
    assert answer.status == 413
    form = {"Origin": f"http://{host}", "Content_Type": "application/x-www-form-urlencoded"}
    good = urlencode({"access_key": server.key, "secret": server.secret}).encode()
    assert (
        ask(server, "POST", "/ui/login", good, **{**form, "Origin": "http://evil.example"})[0].status == 403
    )
    answer, _ = ask(server, "POST", "/ui/login", good, **form)
    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 303 and "HttpOnly; SameSite=Strict" in cookie and "Secure" not in cookie
    token = cookie.partition(";")[0]
    answer, body = ask(server, "GET", "/ui/users", Cookie=token)
    assert answer.status == 200 and answer.headers["Cache-Control"] == "no-store"
    assert not re.search(rb"(src|href|action)=\"(?!/ui/|#|\?)", body) and b"style=" not in body
    assert ask(server, "POST", "/ui/groups", b"name=lab", Cookie=token, **form)[0].status == 403
    assert "Traceback" not in server.log()


def test_a_page_that_is_not_wanted(tmp_path: Path) -> None:
    """Nothing of it is there; metrics are."""
    key, secret = make(tmp_path / "D", '[server]\nport = 0\n[admin]\nport = 0\npage = "off"\n')
    with started(tmp_path / "D", key, secret) as server:
        for path in ("/", "/ui/", "/ui/login"):
            assert ask(server, "GET", path)[0].status == 404
        assert ask(server, "GET", "/metrics")[0].status == 200


class _Reactor(MemoryReactorClock):
    """Runs what threads hand over at once."""

    def callFromThread(self, work: Any, *arguments: Any) -> None:
        """In the thread itself."""
        work(*arguments)


class _Request(DummyRequest):
    """What the page uses of a request and the dummy lacks."""

    def __init__(self) -> None:
        super().__init__([])
        self.method, self.uri = b"GET", b"/ui/"

    @property
    def content(self) -> Any:
        """No body."""
        return io.BytesIO()

    def getClientAddress(self) -> Any:
        """Nobody knows."""
        return None

    def isSecure(self) -> bool:
        """No TLS."""
        return False

    def getCookie(self, _name: bytes) -> None:
        """None."""
        return


def test_a_fault_of_the_page_and_too_much_at_once() -> None:
    """500 without what went wrong, which the log has; 503 when all threads and the queue are taken."""
    hold = threading.Event()

    class Broken:
        def handle(self, _asked: object) -> None:
            hold.wait(20)
            raise RuntimeError("secret inside")

    page = AdminPage(Broken(), _Reactor(), lambda: None)  # type: ignore[arg-type]
    requests = [_Request() for _ in range(THREADS + QUEUE + 1)]
    for request in requests:
        page.render(request)  # type: ignore[arg-type]
    assert [request.responseCode for request in requests if request.finished] == [503]
    hold.set()
    page._pool.stop()
    codes = sorted(request.responseCode for request in requests)
    assert codes == [500] * (THREADS + QUEUE) + [503]
    assert not any(b"secret inside" in b"".join(request.written) for request in requests)
