"""The forms of the admin page as somebody meets them who makes mistakes, or has several tabs open."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import msgspec
import pytest
from web_page import SECRET, Page, Visitor, fields

from cumulus.index.api import Away
from cumulus.web import guard


# what a refusal keeps ---------------------------------------------------------------------------------
def test_a_refused_form_keeps_its_tick(page: Page, boss: Visitor) -> None:
    """Who corrects the date adds the administrator that he meant; a box that was not ticked stays so."""
    boss.get("users")
    typed = {"name": "chief", "expires": "garbage"}
    assert 'name="admin" value="yes" checked>' in boss.post("users", 400, **typed, admin="yes")
    assert 'name="admin" value="yes">' in boss.post("users", 400, **typed)
    assert 'name="admin" value="yes">' in boss.get("users")
    alice = page.user("alice")
    page.bucket("data", alice)
    text = boss.post(f"users/{alice.id}/remove", 400, confirm="yes", give_to="nobody")
    assert 'name="confirm" value="yes" checked' in text


def open_folds(text: str) -> list[str]:
    """The titles of those that come back open."""
    return re.findall(r"<details open><summary>([^<]*)<", text)


def test_a_refused_form_is_not_folded_away(page: Page, boss: Visitor) -> None:
    """What was typed can be seen, and only there."""
    alice = page.user("alice", "AKALICE")
    page.admin.add_key("alice", "AKOTHER", "another-secret")
    page.admin.add_group("lab")
    boss.get(f"users/{alice.id}")
    text = boss.post("keys/AKALICE/expire", 400, when="whenever")
    assert open_folds(text) == ["Expire"] and text.count('value="whenever"') == 1
    assert open_folds(boss.post("keys/AKALICE/remove", 400)) == ["Remove"]
    assert open_folds(boss.post("groups/lab/remove", 400))[-1].startswith("Remove this group")


# what is shown ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("typed", "shown"), [("90m", "90m"), ("30s", "30s"), ("24h", "1d"), ("2w", "14d")])
def test_a_grace_time_is_shown_as_the_commands_do(page: Page, boss: Visitor, typed: str, shown: str) -> None:
    """In the largest unit that fits, not in whole hours."""
    page.admin.add_group("lab")
    boss.get("groups/lab")
    assert f"; {shown} grace" in boss.post("groups/lab/quota", kind="soft", size="1G", grace=typed)


def test_where_there_is_nothing_one_line_says_so(page: Page, boss: Visitor) -> None:
    """That there is none, or after a search that nothing was found; not both."""
    page.admin.add_group("lab")
    for path, said in (
        ("groups/lab", "None."),
        ("buckets", "None."),
        ("buckets?q=data", "nothing found"),
        ("users?q=nobody", "nothing found"),
        ("usage?of=bucket", "None."),
    ):
        assert re.findall(r"None\.|nothing found", boss.get(path)) == [said], path


# several tabs -----------------------------------------------------------------------------------------
SECRET_SHOWN = re.compile(r'<code id="new-secret-key">([^<]*)</code>')


def test_a_new_secret_waits_for_its_page(page: Page, boss: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another tab asks for first, the user's page shows it; once, and only to this session."""
    alice, bob = page.user("alice"), page.user("bob")
    other = page.visitor()
    other.log_in()
    for where in (alice, bob, alice):
        boss.get("users")
        answer = boss.handle(boss.asked("POST", f"users/{where.id}/keys", expires="never"))
        assert answer.status == 303 and dict(answer.headers)["Location"] == f"/ui/users/{where.id}"
    for path in ("usage", "users", "nothing", f"users/{page.boss.id}", f"users/{alice.id}/none"):
        assert b"new-secret-key" not in boss.handle(boss.asked("GET", path)).body, path
    assert not SECRET_SHOWN.search(other.get(f"users/{alice.id}"))

    def away(*_: object) -> None:
        raise Away("cumulus.db: is locked")

    with monkeypatch.context() as broken:
        broken.setattr(page.admin, "keys", away)
        assert boss.handle(boss.asked("GET", f"users/{alice.id}")).status == 503
    shown = []
    for where in (alice, bob, alice):
        answer = boss.handle(boss.asked("GET", f"users/{where.id}"))
        found = SECRET_SHOWN.search(answer.body.decode())
        assert found and answer.keep_s == 0
        shown.append(found[1])
    kept = {
        page.directory.credential(one.access_key).secret for one in page.admin.keys("") if one.user != "boss"
    }
    assert set(shown) == kept and len(kept) == 3
    for where in (alice, bob):
        assert not SECRET_SHOWN.search(boss.get(f"users/{where.id}"))


def test_what_no_page_shows_is_bounded(page: Page, boss: Visitor) -> None:
    """Of many keys the last are kept for their pages."""
    boss.get("users")
    for number in range(guard.TOLD + 1):
        answer = boss.handle(boss.asked("POST", "users", name=f"user{number}"))
        assert answer.status == 303
    shown = [
        one.name for one in page.admin.users()
        if one.name != "boss" and SECRET_SHOWN.search(boss.get(f"users/{one.id}"))
    ]  # fmt: skip
    assert shown == [f"user{number}" for number in range(1, guard.TOLD + 1)]


# addresses --------------------------------------------------------------------------------------------
def test_the_address_of_a_refused_form_leads_to_its_page(page: Page, boss: Visitor) -> None:
    """A refusal leaves it in the browser, which asks for it when it is opened again."""
    alice = page.user("alice", "AKALICE")
    page.bucket("data", alice)
    page.admin.add_group("lab 1")
    at = f"users/{alice.id}"
    for path, lands in (
        *((f"{at}/{what}", at) for what in ("change", "state", "keys", "quota", "remove")),
        *((f"groups/lab%201/{what}", "groups/lab%201") for what in ("change", "join", "leave", "quota")),
        *((f"buckets/data/{what}", "buckets/data") for what in ("quota", "owner")),
        ("keys/AKALICE/expire", at),
        ("keys/AKALICE/remove", at),
        ("keys/NONE/expire", "users"),
        ("logout", ""),
    ):
        answer = boss.handle(boss.asked("GET", path))
        assert (answer.status, dict(answer.headers).get("Location")) == (303, f"/ui/{lands}"), path
        boss.get(lands)
    for path in (f"{at}/none", "keys/AKALICE", "groups/lab%201/state", "none"):
        assert boss.handle(boss.asked("GET", path)).status == 404, path


# sessions that end ------------------------------------------------------------------------------------
def test_a_form_that_is_sent_after_the_session_says_that_nothing_was_saved(page: Page, boss: Visitor) -> None:
    """And the login leads to its page, also after a slip; it knows of no other places."""
    alice = page.user("alice", "AKALICE")
    for path, lands, title in (
        (f"users/{alice.id}/change", f"/users/{alice.id}", "User alice"),
        ("groups", "/groups", "Groups"),
        ("keys/AKALICE/expire", f"/users/{alice.id}", "User alice"),
    ):
        boss.get(f"users/{alice.id}")
        boss.handle(boss.asked("POST", "logout"))  # in another tab: the cookie has gone
        assert not boss.token
        text = boss.post(path, name="alicia", weight="7", when="now", of=alice.id)
        assert "Log in" in text and 'role="alert">Nothing was saved: the session had ended' in text
        assert f'name="back" value="{lands}"' in text
        text = boss.post("login", 403, access_key="ADMIN", secret="wrong", back=lands)
        assert f'name="back" value="{lands}"' in text and "Not let in" in text
        assert f"<h1>{title}</h1>" in boss.post("login", access_key="ADMIN", secret=SECRET, back=lands)
    assert page.admin.user(alice.id).name == "alice" and not page.admin.groups()
    boss.get("users")
    page.clock.now += guard.IDLE_S + 1  # over by itself: the cookie is there
    assert "Nothing was saved" in boss.post("groups", name="lab")
    boss.csrf = ""
    assert "Nothing was saved" not in boss.post("groups", name="lab")
    for odd in (
        "//evil.example",
        "https://evil.example/",
        "/users/../x",
        "/static/page.js",
        "users",
        "/%ff",
        "/",
    ):
        assert 'name="back"' not in boss.get("login?" + urlencode({"unsaved": odd}))
        assert "<h1>Overview</h1>" in boss.post("login", access_key="ADMIN", secret=SECRET, back=odd)


def test_a_form_of_another_session_leads_to_its_page(page: Page, boss: Visitor) -> None:
    """Somebody logged out and in again in another tab: nothing is saved, which is said, with a way back."""
    alice = page.user("alice")
    boss.get("users")
    former = boss.csrf
    boss.log_in()
    boss.csrf = former
    text = boss.post(f"users/{alice.id}/change", 403, name="alicia")
    assert "Nothing was saved" in text and f'href="/ui/users/{alice.id}"' in text
    assert page.admin.user(alice.id).name == "alice"


# what has gone meanwhile ------------------------------------------------------------------------------
def test_a_key_that_was_removed_meanwhile_is_named(page: Page, boss: Visitor) -> None:
    """On the page of its user, whose form it was; on that of all users if he has gone too."""
    alice = page.user("alice", "AKALICE")
    text = boss.get(f"users/{alice.id}")
    of = re.findall(r'name="of" value="([^"]*)"', text)
    assert of == [alice.id] * 2  # Expire, Remove
    page.admin.remove_key("AKALICE")
    for what, typed in (("expire", {"when": "now"}), ("remove", {"confirm": "yes"})):
        text = boss.post(f"keys/AKALICE/{what}", 404, of=alice.id, **typed)
        assert 'role="alert">there is no key AKALICE' in text and "<h1>User alice</h1>" in text
    assert "<h1>Users</h1>" in boss.post("keys/AKALICE/expire", 404, when="now")
    page.admin.remove_user("alice")
    text = boss.post("keys/AKALICE/expire", 404, when="now", of=alice.id)
    assert 'role="alert">there is no key AKALICE' in text and "<h1>Users</h1>" in text


def test_what_was_removed_meanwhile_is_named(page: Page, boss: Visitor) -> None:
    """A form about it answers with the list that it was in, and says why."""
    alice = page.user("alice")
    boss.get("users")
    page.admin.remove_user("alice")
    for path, typed, said, title in (
        (f"users/{alice.id}/change", {"name": "alicia"}, f"there is no user {alice.id}", "Users"),
        ("groups/lab/change", {"weight": "7"}, "there is no group lab", "Groups"),
        ("buckets/data/owner", {"user": "boss"}, "there is no bucket data", "Buckets"),
    ):
        text = boss.post(path, 404, **typed)
        assert f'role="alert">{said}' in text and f"<h1>{title}</h1>" in text


# two who change the same ------------------------------------------------------------------------------
def test_only_what_was_changed_in_a_form_is_saved(page: Page, boss: Visitor) -> None:
    """The weight; not the former name and address, which another tab changed after the form was shown."""
    alice = page.user("alice", display="Alice \\ A&A\n")
    at = f"users/{alice.id}"
    first, second = (fields(boss.get(at), f"{at}/change") for _ in range(2))
    boss.post(f"{at}/change", **{**second, "name": "alicia", "email": "a@example.org"})
    assert "user alicia changed" in boss.post(f"{at}/change", **{**first, "weight": "7"})
    now = page.admin.user(alice.id)
    assert (now.name, now.email, now.weight) == ("alicia", "a@example.org", 7)
    assert now.display == alice.display  # as it is, not as the page shows it
    assert page.audit[-1].endswith("user alicia changed: weight")
    told = len(page.audit)
    assert "user alicia is as before" in boss.post(f"{at}/change", **first)
    assert len(page.audit) == told
    assert page.admin.user(alice.id) == now
    emptied = {**fields(boss.get(at), f"{at}/change"), "email": ""}
    boss.post(f"{at}/change", **emptied)
    assert page.admin.user(alice.id).email == ""


def test_what_two_changed_is_refused_once_and_shown(page: Page, boss: Visitor) -> None:
    """With what it is now, in the form too; what only this one typed stays. Then he may replace it."""
    alice = page.user("alice", email="a@example.org")
    at = f"users/{alice.id}"
    first, second = (fields(boss.get(at), f"{at}/change") for _ in range(2))
    boss.post(f"{at}/change", **{**second, "email": "b@example.org", "weight": "3"})
    first |= {"email": "c@example.org", "display": "Alice A"}
    text = boss.post(f"{at}/change", 400, **first)
    assert "the page was out of date: the e-mail address is b@example.org now" in text
    shown = fields(text, f"{at}/change")
    assert (shown["email"], shown["display"], shown["weight"]) == ("b@example.org", "Alice A", "3")
    assert page.admin.user(alice.id).display == ""
    boss.post(f"{at}/change", **{**shown, "email": "c@example.org"})
    now = page.admin.user(alice.id)
    assert (now.email, now.display, now.weight) == ("c@example.org", "Alice A", 3)


def test_a_refusal_for_another_reason_gives_no_former_value_back(page: Page, boss: Visitor) -> None:
    """The form that comes back has what others changed meanwhile, where nothing else was typed."""
    alice = page.user("alice")
    at = f"users/{alice.id}"
    first = fields(boss.get(at), f"{at}/change")
    page.admin.set_user(msgspec.structs.replace(alice, name="alicia"))
    text = boss.post(f"{at}/change", 400, **{**first, "weight": "0"})
    assert "0 is no weight" in text
    shown = fields(text, f"{at}/change")
    assert (shown["name"], shown["weight"]) == ("alicia", "0")
    boss.post(f"{at}/change", **{**shown, "weight": "2"})
    assert (page.admin.user(alice.id).name, page.admin.user(alice.id).weight) == ("alicia", 2)


@pytest.mark.parametrize(
    ("form", "theirs", "mine", "told"),
    [
        ("groups/lab/change", {"weight": "3"}, {"weight": "5"}, "the weight is 3 now"),
        ("groups/lab/quota", {"size": "1G"}, {"size": "2G"}, "the hard limit of bytes is 1.0 GB now"),
        ("buckets/data/quota", {"objects": "1k"}, {"objects": "2k"}, "the hard limit of objects is 1000 now"),
        (
            "groups/lab/quota",
            {"kind": "soft", "size": "1G", "grace": "90m"},
            {"kind": "soft", "objects": "5", "grace": "2d"},
            "the grace time is 90m now",
        ),
        ("buckets/data/owner", {"user": "bob"}, {"user": "carol"}, "the owner of data is bob now"),
        ("keys/AKALICE/expire", {"when": "2099-01-31"}, {"when": "never"}, "end of the key AKALICE is 2099"),
    ],
)  # fmt: skip
def test_no_form_undoes_what_its_page_did_not_show(
    page: Page, boss: Visitor, form: str, theirs: dict[str, str], mine: dict[str, str], told: str
) -> None:
    """It is refused, the page shows how things are, and its form is taken then."""
    alice = page.user("alice", "AKALICE")
    page.user("bob")
    page.user("carol")
    page.bucket("data", alice)
    page.admin.add_group("lab")
    where = f"users/{alice.id}" if form.startswith("keys") else form.rpartition("/")[0]
    first, second = (fields(boss.get(where), form) for _ in range(2))
    boss.post(form, **{**second, **theirs})
    text = boss.post(form, 400, **{**first, **mine})
    assert told in text and "nothing was saved" in text
    boss.post(form, **{**fields(text, form), **mine})


def test_a_limit_that_nobody_else_set_is_taken(page: Page, boss: Visitor) -> None:
    """Another kind of limit was changed meanwhile: both hold. Limits that went and come again, too."""
    page.admin.add_group("lab")
    form = "groups/lab/quota"
    first, second = (fields(boss.get("groups/lab"), form) for _ in range(2))
    boss.post(form, **{**second, "kind": "soft", "size": "1G"})
    boss.post(form, **{**first, "objects": "5"})
    limits = page.admin.quotas()[0]
    assert (limits.soft_bytes, limits.hard_objects) == (10**9, 5)
    for kind, typed in (("hard", {"objects": "none"}), ("soft", {"size": "none"}), ("soft", {"size": "2G"})):
        boss.post(form, **{**fields(boss.get("groups/lab"), form), "kind": kind, **typed})
    assert page.admin.quotas()[0].soft_bytes == 2 * 10**9
