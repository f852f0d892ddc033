"""The admin page without sockets: login, forms, pages, and what each refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec
import pytest
from web_page import NASTY, SECRET, Page, Visitor

from cumulus.index.admin_api import Quota
from cumulus.index.api import Away, Index, Put, Row
from cumulus.storage.api import StorageError
from cumulus.web import guard
from cumulus.web.app import App
from cumulus.web.messages import BadForm


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"a=b"),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/x-www-form-urlencoded", b"a=\xff"),
        ("application/x-www-form-urlencoded", b"a=%ff"),
        ("application/x-www-form-urlencoded", b"&".join(b"a%d=1" % number for number in range(101))),
    ],
)
def test_what_is_no_form(boss: Visitor, kind: str, body: bytes) -> None:
    """It is refused with 400."""
    asked = replace(boss.asked("POST", "users"), content_type=kind, body=body)
    with pytest.raises(BadForm):
        asked.form()
    assert boss.handle(asked).status == 400


# login ------------------------------------------------------------------------------------------------
def test_nothing_is_shown_or_changed_without_a_login(page: Page) -> None:
    """Pages lead to the login, forms too, and change nothing; only files of the page itself are given."""
    visitor = page.visitor()
    for path in ("", "users", f"users/{page.boss.id}", "groups", "buckets", "usage", "none", "keys/ADMIN/x"):
        for method in ("GET", "POST"):
            answer = visitor.handle(visitor.asked(method, path, name="eve"))
            assert (answer.status, dict(answer.headers)["Location"]) == (303, "/ui/login"), path
    assert [one.name for one in page.admin.users()] == ["boss"]
    assert "Log in" in visitor.get("login") and "font" in visitor.get("static/page.css")
    assert visitor.handle(visitor.asked("GET", "static/app.py")).status == 404
    assert visitor.handle(visitor.asked("DELETE", "users")).status == 405


def test_login_logout_and_what_is_told_of_them(page: Page) -> None:
    """One answer for all refusals; the log names the key only if it is one."""
    page.user("alice", "ALICE")
    visitor = page.visitor()
    for key, secret in (("ADMIN", "wrong"), ("NONE", SECRET), ("ALICE", SECRET), ("", ""), (SECRET, "ADMIN")):
        text = visitor.post("login", 403, access_key=key, secret=secret)
        assert "Not let in" in text and SECRET not in text and not visitor.token
    assert "Overview" in visitor.log_in()
    assert "boss" in visitor.get("users")
    assert "Log in" in visitor.post("logout") and not visitor.token
    assert page.audit == [
        "@127.0.0.1: a login with the key ADMIN of boss was refused",
        "@127.0.0.1: a login with an unknown key was refused",
        "@127.0.0.1: a login with the key ALICE of alice was refused",
        "@127.0.0.1: a login with an unknown key was refused",
        "@127.0.0.1: a login with an unknown key was refused",
        "boss@127.0.0.1: logged in with the key ADMIN",
        "boss@127.0.0.1: logged out",
    ]


def test_too_many_tries(page: Page) -> None:
    """Then not even the right secret is looked at, until time has passed."""
    visitor = page.visitor()
    for _ in range(guard.Attempts.EACH):
        visitor.post("login", 403, access_key="ADMIN", secret="wrong")
    answer = visitor.handle(visitor.asked("POST", "login", access_key="ADMIN", secret=SECRET))
    assert answer.status == 429 and int(dict(answer.headers)["Retry-After"]) > 0
    assert page.audit[-1] == "@127.0.0.1: a login was refused: too many tries"
    visitor.peer = "10.9.9.9"
    assert "Overview" in visitor.log_in()
    page.clock.now += guard.Attempts.EACH_EVERY_S
    visitor.peer = "127.0.0.1"
    assert "Overview" in visitor.log_in()


def test_a_session_is_over_when_its_key_or_user_is(page: Page) -> None:
    """Each request looks again: at the key and its time, at the user and what he may."""
    other = page.user("other", admin=True)
    for number, end in enumerate(("key", "secret", "expired", "disabled", "admin")):
        key = f"OTHER{number}"
        page.admin.set_user(msgspec.structs.replace(other))
        page.admin.add_key("other", key, SECRET)
        page.forget()
        visitor = page.visitor()
        visitor.log_in(key)
        if end == "key":
            page.admin.remove_key(key)
        elif end == "secret":  # the key that leaked has gone, and another one has its name
            page.admin.remove_key(key)
            page.admin.add_key("other", key, "another-secret")
        elif end == "expired":
            page.admin.expire_key(key, 1)
        else:
            page.admin.set_user(
                msgspec.structs.replace(other, disabled=end == "disabled", admin=end == "disabled")
            )
        page.forget()
        answer = visitor.handle(visitor.asked("GET", "users"))
        assert answer.status == 303 and "Max-Age=0" in dict(answer.headers)["Set-Cookie"], end
        assert len(page.app.sessions) == 0


def test_a_second_login_ends_the_first_of_the_same_browser(page: Page) -> None:
    """A token that somebody put into the browser before is worth nothing after the login."""
    visitor = page.visitor()
    visitor.log_in()
    first = visitor.token
    visitor.log_in()
    assert visitor.token != first and len(page.app.sessions) == 1


def test_forms_need_the_origin_and_the_token_of_the_session(page: Page, boss: Visitor) -> None:
    """Either one missing: refused, told to the log, nothing changed."""
    good = boss.asked("POST", "groups", name="lab")
    for bad in (replace(good, origin="http://evil.example"), replace(good, origin="", fetch_site="")):
        assert boss.handle(bad).status == 403
    other = page.visitor()
    other.log_in()
    other.get("groups")
    stolen = replace(good, body=urlencode({"csrf": other.csrf, "name": "lab"}).encode())
    assert boss.handle(stolen).status == 403
    assert boss.handle(replace(good, body=b"name=lab")).status == 403
    assert [line for line in page.audit if "refused" in line] == [
        "@127.0.0.1: a form from another origin was refused",
        "@127.0.0.1: a form from another origin was refused",
        "boss@127.0.0.1: a form without the session's token was refused",
        "boss@127.0.0.1: a form without the session's token was refused",
    ]
    assert not page.admin.groups() and boss.handle(good).status == 303


def test_a_warning_where_the_way_is_not_encrypted(page: Page) -> None:
    """Not on this machine, not over TLS."""
    ask = page.visitor().asked("GET", "login")
    for asked, warned in (
        (ask, False),
        (replace(ask, peer="10.0.0.9"), True),
        (replace(ask, peer="10.0.0.9", secure=True), False),
    ):
        assert (b"not encrypted" in page.app.handle(asked).body) is warned


# users and keys ---------------------------------------------------------------------------------------
def test_a_user_is_added_and_his_secret_is_shown_once(page: Page, boss: Visitor) -> None:
    """It logs in where it should, and stands neither on the next page nor in the log."""
    page.admin.add_group("lab")
    boss.get("users")
    text = boss.post("users", name="alice", display="Alice", email="A@x.org", group="lab", expires="30d")
    key, secret = re.findall(r'<code id="new-[a-z]+-key">([^<]*)</code>', text)
    assert "The secret key is shown this once" in text and f"secret_key = {secret}" in text
    found = page.directory.credential(key)
    assert found is not None and found.secret == secret and found.expires_ns
    assert (found.user.name, found.user.email, found.user.groups) == ("alice", "a@x.org", ("lab",))
    again = boss.get(f"users/{found.user.id}")
    assert secret not in again and key in again and secret not in "".join(page.audit)
    assert page.audit[-1] == f"boss@127.0.0.1: user alice added, with the key {key}"
    assert "administrator" in boss.post("users", name="chief", admin="yes")


def test_a_refused_form_keeps_what_was_typed(page: Page, boss: Visitor) -> None:
    """With the reason; the log has it too."""
    page.user("alice")
    boss.get("users")
    text = boss.post("users", 400, name="alice", display="Another Alice", expires="never")
    assert 'role="alert">there is a user alice already' in text and 'value="Another Alice"' in text
    assert "<details open" in text and "refused: users: there is a user alice" in page.audit[-1]
    for fields in (
        {"name": "a/b"},
        {"name": ""},
        {"name": "bob", "expires": "soon"},
        {"name": "b", "group": "no"},
    ):
        boss.post("users", 400, **fields)
    assert [one.name for one in page.admin.users()] == ["alice", "boss"]


def test_keys_are_made_expired_and_removed(page: Page, boss: Visitor) -> None:
    """The forms of a user's page."""
    alice = page.user("alice", "AKALICE")
    boss.get(f"users/{alice.id}")
    assert "New key" in boss.post(f"users/{alice.id}/keys", expires="2099-01-31")
    assert "2099-01-31" in boss.get(f"users/{alice.id}")
    assert ">over<" in boss.post("keys/AKALICE/expire", when="now")
    assert "is not a date" in boss.post("keys/AKALICE/expire", 400, when="whenever")
    assert "is after 2262-04-11 (use never)" in boss.post("keys/AKALICE/expire", 400, when="9999-12-31")
    assert "tick the box" in boss.post("keys/AKALICE/remove", 400)
    assert "key AKALICE removed" in boss.post("keys/AKALICE/remove", confirm="yes")
    assert len(page.admin.keys("alice")) == 1
    assert boss.handle(boss.asked("POST", "keys/NONE/remove", confirm="yes")).status == 404


def test_a_user_is_changed_disabled_and_removed(page: Page, boss: Visitor) -> None:
    """With what he owns given to another one."""
    alice, bob = page.user("alice"), page.user("bob")
    page.bucket("data", alice)
    at = f"users/{alice.id}"
    boss.get(at)
    boss.post(f"{at}/change", name="alicia", display="A", email="", weight="7", unix_user="")
    assert (page.admin.user(alice.id).name, page.admin.user(alice.id).weight) == ("alicia", 7)
    for weight in ("0", "many", "1001"):
        boss.post(f"{at}/change", 400, name="alicia", weight=weight)
    assert "alicia is disabled now" in boss.post(f"{at}/state", disabled="yes")
    assert page.admin.user(alice.id).disabled and "Disabled" in boss.get("users")
    boss.post(f"{at}/state", disabled="no")
    assert "an administrator now" in boss.post(f"{at}/state", admin="yes")
    boss.post(f"{at}/state", 400)
    assert "owns 1 bucket" in boss.post(f"{at}/remove", 400, confirm="yes")
    assert "there is no user nobody" in boss.post(f"{at}/remove", 400, confirm="yes", give_to="nobody")
    boss.post(f"{at}/remove", 400, give_to="bob")
    assert "bob got his buckets: 1" in boss.post(f"{at}/remove", confirm="yes", give_to="bob")
    found = page.index.bucket("data")
    assert found is not None and found.owner == bob.id
    assert boss.handle(boss.asked("GET", at)).status == 404


def test_nobody_locks_himself_out(page: Page, boss: Visitor) -> None:
    """The own user and key are not taken away by a slip."""
    at = f"users/{page.boss.id}"
    assert "You are logged in as this user" in boss.get(at)
    for path, fields in (
        (f"{at}/state", {"disabled": "yes"}),
        (f"{at}/state", {"admin": "no"}),
        (f"{at}/remove", {"confirm": "yes"}),
        ("keys/ADMIN/remove", {"confirm": "yes"}),
        ("keys/ADMIN/expire", {"when": "now"}),
    ):
        assert "you are logged in" in boss.post(path, 400, **fields)
    assert page.admin.user("boss").admin and page.admin.keys("boss")[0].expires_ns == 0


# groups, buckets, quotas, usage -----------------------------------------------------------------------
def test_groups(page: Page, boss: Visitor) -> None:
    """Names with letters of all kinds in their paths."""
    page.user("alice")
    boss.get("groups")
    name = "gruppe-ä?&%"
    assert f"Group {name.replace('&', '&amp;')}" in boss.post("groups", name=name)
    changed = boss.post(f"groups/{quote(name)}/change", weight="7")
    assert "has the weight 7 now" in changed and page.admin.groups()[0].weight == 7
    for wrong in ("0", "1001", "x"):
        assert "is no weight" in boss.post(f"groups/{quote(name)}/change", 400, weight=wrong)
    boss.get(f"groups/{quote(name)}")
    boss.post(f"groups/{quote(name)}/join", user="alice")
    assert page.admin.groups()[0].members == ["alice"]
    boss.post("groups", name="lab")
    assert "there is no user eve" in boss.post("groups/lab/join", 400, user="eve")
    assert "is in group lab now" in boss.post("groups/lab/join", user="alice")
    assert "not in group lab any more" in boss.post("groups/lab/leave", user="alice")
    boss.post("groups/lab/remove", 400)
    assert "group lab removed" in boss.post("groups/lab/remove", confirm="yes")
    assert boss.handle(boss.asked("GET", "groups/lab")).status == 404


def test_quotas_of_users_groups_and_buckets(page: Page, boss: Visitor) -> None:
    """Hard and soft; what is empty stays."""
    alice = page.user("alice")
    page.admin.add_group("lab")
    page.bucket("data", alice)
    boss.get("usage")
    for path in (f"users/{alice.id}", "groups/lab", "buckets/data"):
        assert "hard 10,000,000,000 bytes" in boss.post(f"{path}/quota", kind="hard", size="10G")
        text = boss.post(f"{path}/quota", kind="soft", size="8G", objects="100k", grace="3d")
        assert "0 B of 10.0 GB" in text and "8.0 GB, 100000 objects; 3d grace" in text
        assert "is not a size" in boss.post(f"{path}/quota", 400, kind="hard", size="much")
        assert "is not a number" in boss.post(f"{path}/quota", 400, kind="hard", objects="9" * 5000)
        endless = boss.post(f"{path}/quota", 400, kind="soft", size="1G", grace="999999w")
        assert "is longer than a hundred years" in endless
        assert "no limit is given" in boss.post(f"{path}/quota", 400, kind="hard")
        assert "; 5d grace" in boss.post(f"{path}/quota", kind="soft", grace="5d")  # alone
        assert "quota of" in boss.post(f"{path}/quota", kind="hard", size="none")
    assert {(one.scope, one.hard_bytes, one.soft_objects) for one in page.admin.quotas()} == {
        (scope, 0, 100000) for scope in ("user", "group", "bucket")
    }


def test_a_bucket_gets_another_owner(page: Page, boss: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in the name changes nothing; what is known of users for a moment does not count."""
    monkeypatch.setattr(page.directory._users, "_seconds", 3600.0)  # type: ignore[attr-defined]
    alice, bob = page.user("alice"), page.user("bob")
    page.bucket("data", alice)
    assert "alice" in boss.get("buckets") and "alice" in boss.get("buckets/data")
    assert "there is no user bbo" in boss.post("buckets/data/owner", 400, user="bbo")
    assert "bucket data is bob&#x27;s now" in boss.post("buckets/data/owner", user="bob")
    found = page.index.bucket("data")
    assert found is not None and found.owner == bob.id
    page.user("bbo")  # whom the first form asked for; now he is there, and then he is not
    assert "bucket data is bbo&#x27;s now" in boss.post("buckets/data/owner", user="bbo")
    assert "bucket data is bob&#x27;s now" in boss.post("buckets/data/owner", user="bob")
    page.admin.remove_user("bbo")
    assert "there is no user bbo" in boss.post("buckets/data/owner", 400, user="bbo")
    assert boss.handle(boss.asked("GET", "buckets/none")).status == 404
    assert boss.handle(boss.asked("POST", "buckets/none/owner", user="bob")).status == 404


def test_two_hundred_users_are_paged_and_found(page: Page, boss: Visitor) -> None:
    """Fifty on a page, in order; a search looks in names and addresses."""
    for number in range(200):
        page.user(f"user{number:03d}", email=f"u{number}@example.org")
    names = re.compile(r">(user\d{3})<")
    assert names.findall(boss.get("users")) == [f"user{number:03d}" for number in range(49)]
    last = boss.get("users?page=5")
    assert names.findall(last) == ["user199"] and "201 to 201 of 201" in last
    assert "page=4" in last and "page=6" not in last
    assert names.findall(boss.get("users?q=U17%40EXAMPLE")) == ["user017"]
    assert "nothing found" in boss.get("users?q=nobody")
    for odd in ("-1", "999999999", "9" * 5000, "123456x", "x", "٣", "²"):
        assert "of 201" in boss.get(f"users?page={odd}")
    assert len(names.findall(boss.get("usage?of=user&page=2"))) == 50


def test_a_user_with_many_buckets(page: Page, boss: Visitor) -> None:
    """Some are shown, and how many more there are."""
    alice = page.user("alice")
    for number in range(53):
        page.bucket(f"b{number:02d}", alice)
    text = boss.get(f"users/{alice.id}")
    assert ">b49<" in text and ">b50<" not in text and "and 3 more" in text


def test_usage_has_the_largest_first(page: Page, boss: Visitor) -> None:
    """Of users, groups, buckets."""
    page.admin.add_group("lab")
    for number, size in enumerate((5, 70, 600)):
        page.bucket(f"b{number}", page.user(f"u{number}"))
        owner = page.index.bucket(f"b{number}").owner
        row = Row(
            bucket=f"b{number}",
            key="k",
            stamp=1,
            name="k",
            token=b"t",
            size=size,
            etag="e",
            modified_ns=1,
            owner=owner,
        )
        page.index.apply([Put(row=row)])
    assert "Overview" in boss.get("") and ">3<" in boss.get("")
    assert re.findall(r">(u\d)<", boss.get("usage?of=user")) == ["u2", "u1", "u0"]
    assert re.findall(r">(b\d)<", boss.get("usage?of=bucket")) == ["b2", "b1", "b0"]
    assert ">lab<" in boss.get("usage?of=group")
    assert re.findall(r">(b\d)<", boss.get("usage?of=nonsense")) == ["b2", "b1", "b0"]


def test_names_do_not_become_markup(page: Page, boss: Visitor) -> None:
    """Wherever they are shown."""
    alice = page.user("alice'&", display=NASTY, email=NASTY.lower())
    page.bucket("data", alice)
    boss.get("users")
    shown = [
        boss.get(path) for path in ("", "users", f"users/{alice.id}", "buckets", "usage", "buckets/data")
    ]
    shown.append(boss.get("users?" + urlencode({"q": NASTY})))
    shown.append(boss.post("users", 400, name=NASTY, display=NASTY, email=NASTY, expires=NASTY))
    shown.append(boss.post("login", 403, access_key=NASTY, secret=NASTY))
    assert not any("<script>" in text or "alert('x')" in text for text in shown)


# users in a file --------------------------------------------------------------------------------------
def test_users_in_a_file_are_shown_and_not_changed_here(page: Page) -> None:
    """With their keys and quotas, and where they are kept; only the owner of a bucket can be changed."""
    alice = page.user("alice", "ALICE", groups=())
    page.admin.add_group("lab", 3)
    page.admin.join("lab", "alice")
    page.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=4_000_000))
    page.bucket("data", alice)
    app = App(replace(page.held, users_file="/etc/s3/users"), page.clock)
    visitor = Visitor(app, page.clock, page.audit)
    assert "the file /etc/s3/users" in visitor.log_in()
    paths = ("users", f"users/{alice.id}", "groups", "groups/lab", "usage", "usage?of=group")
    shown = {path: visitor.get(path) for path in paths}
    for path, text in shown.items():
        assert text.count("<form") - text.count("logout") - text.count('class="search"') == 0, path
    for path in paths[:4]:
        assert "kept in the file /etc/s3/users" in shown[path]
    one = shown[f"users/{alice.id}"]
    assert "ALICE" in one and SECRET not in one and "4.0 MB" in one and "cumulus quota" in one
    assert "alice" in shown["groups/lab"] and "Weight" in shown["groups/lab"]
    assert "alice" in shown["usage"] and "lab" in shown["usage?of=group"]
    assert "data" in visitor.get("buckets") and "Set quota" not in visitor.get("buckets/data")
    for path in ("users", "groups", "keys/ADMIN/remove", "buckets/data/quota", f"users/{alice.id}/keys",
                 f"users/{alice.id}/quota", "groups/lab/join", f"users/{alice.id}/remove"):  # fmt: skip
        asked = visitor.asked("POST", path, name="x", confirm="yes", size="1G", user="boss")
        assert visitor.handle(asked).status == 404, path


# faults -----------------------------------------------------------------------------------------------
def test_a_database_that_is_away(page: Page, boss: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with the reason, for pages and forms."""

    def away(*_: object, **__: object) -> None:
        raise Away("cumulus.db: is locked")

    boss.get("users")
    monkeypatch.setattr(page.admin, "users", away)
    monkeypatch.setattr(page.admin, "add_group", away)
    for asked in (boss.asked("GET", "users"), boss.asked("POST", "groups", name="lab")):
        answer = boss.handle(asked)
        assert answer.status == 503 and b"is locked" in answer.body


def test_a_storage_that_fails(page: Page, boss: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is refused with the storage's own words, once before anything was read, once on the way."""
    page.bucket("data", page.boss)
    page.user("bob")
    boss.get("buckets")

    def broken(*_: object, **__: object) -> None:
        raise StorageError("/data: Input/output error")

    monkeypatch.setattr(page.index, "page_versions", broken)
    assert "Input/output error" in boss.post("buckets/data/owner", 400, user="bob")
    monkeypatch.setattr(page.index, "buckets", broken)
    answer = boss.handle(boss.asked("GET", "buckets"))
    assert answer.status == 500 and b"Input/output error" in answer.body


def test_what_goes_while_a_page_is_made(page: Page, boss: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who was just removed is left out of the table; the rest is shown."""
    alice = page.user("alice")
    page.user("bob")
    real = type(page.index).usage

    def usage(index: Index, scope: str, name: str) -> object:
        if name == alice.id:
            page.admin.remove_user(alice.id)
        return real(index, scope, name)  # type: ignore[arg-type]

    monkeypatch.setattr(type(page.index), "usage", usage)
    text = boss.get("users")
    assert ">bob<" in text and ">alice<" not in text
    monkeypatch.setattr("cumulus.web.pages.shutil.disk_usage", _no_disk)
    assert "not known: Input/output error" in boss.get("")


def _no_disk(_path: object) -> None:
    raise OSError(5, "Input/output error")


def test_the_password_of_a_storage_is_not_shown(page: Page, boss: Visitor) -> None:
    """A URL of fsspec may have one in it."""
    storage = msgspec.structs.replace(page.config.storage, backend="fsspec:sftp://me:secret@nas/s3")
    page.app._held = replace(page.held, config=msgspec.structs.replace(page.config, storage=storage))
    text = boss.get("")
    assert "fsspec:sftp://nas/s3" in text and "secret@" not in text


@pytest.mark.parametrize("form", ["", '[storage]\npath = "store"\n', '[storage]\nbackend = "posix:{}"\n'])
def test_the_free_space_is_that_of_the_directory_of_objects(tmp_path: Path, form: str) -> None:
    """However the settings name it; with the directory in `backend` it was not known."""
    (tmp_path / "store").mkdir()
    page = Page(tmp_path, form.format(tmp_path / "store"))
    try:
        visitor = page.visitor()
        visitor.log_in()
        assert re.search(r"Free space</dt><dd>[\d.]+ [kMGT]?B of [\d.]+ [kMGT]?B<", visitor.get())
    finally:
        page.close()
