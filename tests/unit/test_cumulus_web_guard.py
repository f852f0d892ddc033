"""Who may use the admin page, and how requests are told apart: sessions, tries, origins, cookies. Time is an
argument."""

from __future__ import annotations

import itertools

import pytest
from web_page import HOST, NASTY, SECRET, Clock

from cumulus.config import Config, parse_config
from cumulus.model import Credential, User
from cumulus.web import guard
from cumulus.web.html import Html, el, join
from cumulus.web.messages import Asked, cookie, cookie_name
from cumulus.web.resource import is_wanted, page_url


# sessions ---------------------------------------------------------------------------------------------
def key_of(user: str) -> Credential:
    """Somebody's key."""
    return Credential(access_key="KEY", secret="secret", user=User(id=user, name=user))


def sessions(clock: Clock) -> guard.Sessions:
    """With tokens that can be told apart."""
    count = itertools.count()
    return guard.Sessions(clock, lambda: f"token-{next(count)}")


def test_a_session_ends_when_it_is_not_used_and_after_its_longest_time() -> None:
    """Use keeps it, but not for ever."""
    clock = Clock()
    held = sessions(clock)
    token = held.open(key_of("id"))
    clock.now += guard.IDLE_S - 1
    assert held.find(token) is not None
    clock.now += guard.IDLE_S + 1
    assert held.find(token) is None and len(held) == 0
    token, begun = held.open(key_of("id")), clock.now
    while clock.now - begun <= guard.LONGEST_S:
        assert held.find(token) is not None
        clock.now += guard.IDLE_S / 2
    assert held.find(token) is None


def test_sessions_are_bounded_and_those_of_one_user_do_not_push_out_others() -> None:
    """The one that was not used for the longest time goes."""
    clock = Clock()
    held = sessions(clock)
    other = held.open(key_of("other"))
    mine = [held.open(key_of("id")) for _ in range(guard.SESSIONS_OF_ONE + 1)]
    assert held.find(mine[0]) is None and held.find(mine[1]) is not None and held.find(other) is not None
    for number in range(guard.SESSIONS):
        held.open(key_of(f"user {number}"))
    assert len(held) == guard.SESSIONS and held.find(other) is None
    held.close(mine[-1])
    held.close("no such")


def test_tokens_are_long_and_the_session_does_not_show_them() -> None:
    """Neither the cookie's nor the form's."""
    held = guard.Sessions(Clock())
    token = held.open(key_of("id"))
    found = held.find(token)
    assert found is not None and len(token) >= 43 and len(found.csrf) >= 43
    assert found.csrf not in repr(found) and found.csrf != token
    assert guard.fits(found, found.csrf)
    assert not guard.fits(found, "") and not guard.fits(found, token) and not guard.fits(found, "\udcff")


# tries ------------------------------------------------------------------------------------------------
def test_tries_are_limited_for_each_network_and_come_back() -> None:
    """Addresses of one IPv6 network count as one; others are not held up."""
    clock = Clock()
    tries = guard.Attempts(clock)
    taken = [tries.take(f"2001:db8::{number:x}") for number in range(tries.EACH + 1)]
    assert not any(taken[:-1]) and 0 < taken[-1] <= tries.EACH_EVERY_S
    assert tries.take("2001:db8:1::1") == 0 and tries.take("::ffff:10.0.0.1") == 0
    clock.now += tries.EACH_EVERY_S
    assert tries.take("2001:db8::ffff") == 0 and tries.take("2001:db8::ffff") > 0
    assert guard.network("::ffff:10.0.0.1") == guard.network("10.0.0.1") and guard.network("x") == "x"


def test_tries_are_limited_for_all_and_remembered_for_few() -> None:
    """Many addresses do not make many tries, nor much memory."""
    clock = Clock()
    tries = guard.Attempts(clock)
    taken = [tries.take(f"10.0.{number // 256}.{number % 256}") for number in range(2 * tries.KNOWN)]
    assert sum(wait == 0 for wait in taken) == tries.ALL
    assert len(tries._each) == tries.KNOWN


def test_a_try_that_succeeds_does_not_count() -> None:
    """An administrator may log in as often as he likes."""
    tries = guard.Attempts(Clock())
    for _ in range(3 * tries.ALL):
        assert tries.take("10.0.0.1") == 0
        tries.give_back("10.0.0.1")
    tries.give_back("10.0.0.2")


def test_who_may_log_in() -> None:
    """An administrator who is let in, with a key that is not over and its secret."""
    user = User(id="1", name="boss", admin=True)
    key = Credential(access_key="A", secret=SECRET, user=user)
    assert guard.check_login(key, SECRET, 5) == user
    assert guard.check_login(key, SECRET[:-1], 5) is None and guard.check_login(None, SECRET, 5) is None
    for other in (User(id="1", name="x"), User(id="1", name="x", admin=True, disabled=True)):
        assert guard.check_login(Credential(access_key="A", secret=SECRET, user=other), SECRET, 5) is None
    late = Credential(access_key="A", secret=SECRET, user=user, expires_ns=5)
    assert guard.check_login(late, SECRET, 5) is None and guard.check_login(late, SECRET, 4) == user


# messages ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "origin", "site", "same"),
    [
        (HOST, f"http://{HOST}", "", True),
        (HOST, f"https://{HOST}", "", True),
        ("s3.example.org", "https://s3.example.org:443", "", True),
        ("S3.example.org:80", "http://s3.example.org", "", True),
        (HOST, "http://127.0.0.1:8888", "", False),
        (HOST, "http://evil.example", "same-origin", False),
        (HOST, "null", "", False),
        (HOST, "file://" + HOST, "", False),
        (HOST, "", "same-origin", True),
        (HOST, "", "cross-site", False),
        (HOST, "", "", False),
    ],
)
def test_forms_of_other_origins_are_told_apart(host: str, origin: str, site: str, same: bool) -> None:
    """By what browsers say."""
    assert Asked("POST", host=host, origin=origin, fetch_site=site).same_origin() is same


def test_cookies_are_of_one_port_and_for_the_page_only() -> None:
    """Services on one machine do not log each other out; over TLS the cookie stays there."""
    assert cookie_name(HOST) == cookie_name("[::1]:8889") == "cumulus_session_8889"
    assert cookie_name("[::1]") == cookie_name("example.org") == cookie_name("x:y") == "cumulus_session"
    _, text = cookie(Asked("POST", host=HOST), "T", 5)
    assert text == "cumulus_session_8889=T; Path=/ui; HttpOnly; SameSite=Strict; Max-Age=5"
    assert cookie(Asked("POST", host=HOST, secure=True), "T", 5)[1].endswith("; Secure")
    assert cookie(Asked("POST", host=HOST, origin="https://h"), "T", 5)[1].endswith("; Secure")


def test_html_escapes_what_is_not_html() -> None:
    """Text, attributes, numbers, lists; what turns the reading direction is made visible."""
    made = el(
        "a", NASTY, ["<b>", None, (1, el("br"))], title=NASTY, class_="x", data_id=1, hidden=True, x=None
    )
    safe = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;"
    assert made == f'<a title="{safe}" class="x" data-id="1" hidden>{safe}&lt;b&gt;1<br></a>'
    assert isinstance(made, Html) and join("\u202e\x1b") == "\\u202e\\x1b"


@pytest.mark.parametrize(
    ("host", "page", "wanted"),
    [
        ("127.0.0.1", "auto", True),
        ("::1", "auto", True),
        ("localhost", "auto", True),
        ("10.1.2.3", "auto", True),
        ("fd00::1", "auto", True),
        ("0.0.0.0", "auto", False),
        ("::", "auto", False),
        ("8.8.8.8", "auto", False),
        ("2600::1", "auto", False),
        ("s3.example.org", "auto", False),
        ("0.0.0.0", "on", True),
        ("127.0.0.1", "off", False),
    ],
)
def test_public_addresses_have_no_page_unless_it_is_wanted(host: str, page: str, wanted: bool) -> None:
    """`[admin] page`."""
    config: Config = parse_config(f'[admin]\nhost = "{host}"\npage = "{page}"\n', "/x/cumulus.toml")
    assert is_wanted(config) is wanted


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.1.2.3", "http://10.1.2.3:9/"),
        ("0.0.0.0", "http://127.0.0.1:9/"),
        ("::", "http://[::1]:9/"),
        ("fd00::1", "http://[fd00::1]:9/"),
    ],
)
def test_where_the_page_is(host: str, url: str) -> None:
    """What `cumulus serve --detach` says."""
    assert page_url(parse_config(f'[admin]\nhost = "{host}"\nport = 9\n', "/x")) == url
