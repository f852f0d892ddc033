"""Sessions and the keys derived from them (spec/security.md, Sessions)."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from sector import keys
from sector.errors import Busy, Damaged, SessionExpired
from sector.master import sessions as table
from sector.master.admission import SOURCES, Admission
from sector.master.login import single_network
from sector.master.sessions import Sessions, principal_of, split_principal
from sector.model import Right
from sector.wire.login import Verified, Vouched

KEY = b"c" * 32


class World:
    """A clock and randomness under the test's hand."""

    def __init__(self, seed: int = 1) -> None:
        self.time = 1000.0
        self._random = random.Random(seed)

    def now(self) -> float:
        return self.time

    def rng(self, n: int) -> bytes:
        return self._random.randbytes(n)


def build_sessions(world: World, key: bytes = KEY, master_id: str = "m1", issuer: int = 3) -> Sessions:
    return Sessions(master_id, key, world.now, world.rng, issuer)


def verified(user: str = "alice", epoch: int = 5, *rights: Right) -> Verified:
    return Verified(user, ["user"], list(rights), epoch)


def rfc5869(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 of one block written from RFC 5869, section 2."""
    prk = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(prk, info + b"\x01", hashlib.sha256)


class TestKeys:
    def test_derivations_follow_the_written_form(self) -> None:
        secret = bytes(range(32))
        assert keys.client_master_key(secret, "m1", 0x01020304) == rfc5869(secret, b"cmm1\x01\x02\x03\x04")
        info = b"cs" + b"s1" + (7).to_bytes(8, "big") + (2).to_bytes(4, "big")
        assert keys.client_slave_key(secret, "s1", 7, 2) == rfc5869(secret, info)

    def test_no_two_pairs_share_a_key(self) -> None:
        secret = b"s" * 32
        found = {keys.client_slave_key(secret, s, i, n) for s in ("a", "b") for i in (1, 2) for n in (0, 1)}
        found |= {keys.client_master_key(secret, m, k) for m in ("a", "b") for k in (1, 2)}
        assert len(found) == 12

    def test_a_wrapped_secret_opens_only_with_its_key_and_its_row(self) -> None:
        wrapped = keys.wrap(KEY, b"s" * 32, b"row1", World().rng)
        assert keys.unwrap(KEY, wrapped, b"row1") == b"s" * 32
        wrong = [
            (b"d" * 32, wrapped, b"row1"),
            (KEY, wrapped, b"row2"),
            (KEY, wrapped[:-1], b"row1"),
            (KEY, b"", b"row1"),
        ]
        for key, blob, row in wrong:
            with pytest.raises(Damaged):
                keys.unwrap(key, blob, row)

    def test_key_numbers_have_the_issuer_on_top_and_never_repeat_while_in_use(self) -> None:
        answers = [b"\0\0\1", b"\0\0\1", b"\0\0\2", b"\0\0\1"]
        ids = keys.KeyIds(3, lambda n: answers.pop(0))
        assert ids.new() == 0x03000001
        assert ids.new() == 0x03000002  # 1 was drawn again and refused
        ids.free(0x03000001)
        assert ids.new() == 0x03000001

    @pytest.mark.parametrize("issuer", [0, 256])
    def test_an_issuer_is_one_byte(self, issuer: int) -> None:
        with pytest.raises(ValueError):
            keys.KeyIds(issuer, World().rng)


class TestTable:
    def test_a_session_lives_twelve_hours(self) -> None:
        world = World()
        sessions = build_sessions(world)
        row, _ = sessions.create(verified(), "10.0.0.1/32")
        who = principal_of("alice", row.id)
        assert row.expires == 1000.0 + 12 * 3600
        assert sessions.user_of(who).user == "alice"
        world.time = row.expires
        with pytest.raises(SessionExpired):
            sessions.user_of(who)
        assert sessions.expired() == [row]
        assert len(sessions) == 0

    def test_both_ends_derive_the_same_keys(self) -> None:
        sessions = build_sessions(World())
        row, secret = sessions.create(verified(), "10.0.0.1/32")
        key = sessions.gmp_key(row)
        assert key.secret == keys.client_master_key(secret, "m1", row.key_id)
        assert key.principal == f"user:alice#{row.id.hex()}" and key.valid_s == 12 * 3600
        assert row.key_id >> 24 == 3
        derived = sessions.slave_key(key.principal, "s1", 99, 4)
        assert derived == keys.client_slave_key(secret, "s1", 99, 4)

    def test_sessions_survive_a_restart_and_another_master_gets_other_keys(self) -> None:
        world = World()
        first = build_sessions(world)
        row, secret = first.create(verified(), "10.0.0.1/32")
        again = build_sessions(world)
        assert again.load([row]) == []
        assert again.secret(row) == secret and again.gmp_key(row) == first.gmp_key(row)
        other = build_sessions(world, master_id="m2")
        other.load([row])
        assert other.gmp_key(row).secret != first.gmp_key(row).secret

    def test_rows_that_are_over_are_not_loaded(self) -> None:
        world = World()
        row, _ = build_sessions(world).create(verified(), "10.0.0.1/32")
        world.time += 13 * 3600
        fresh = build_sessions(world)
        assert fresh.load([row]) == [row] and len(fresh) == 0

    def test_a_row_of_another_user_does_not_open(self) -> None:
        sessions = build_sessions(World())
        one, _ = sessions.create(verified(), "10.0.0.1/32")
        two, _ = sessions.create(verified("bob"), "10.0.0.1/32")
        with pytest.raises(Damaged):
            sessions.secret(replace(one, secret_wrapped=two.secret_wrapped))

    def test_resume_needs_the_secret_this_connection_and_the_address(self) -> None:
        sessions = build_sessions(World())
        row, secret = sessions.create(verified(), "10.0.0.0/30")
        exporter = b"e" * 32
        proof = keys.resume_proof(secret, exporter)
        assert sessions.resume(row.id, proof, exporter, "10.0.0.3") == row
        for arguments in (
            (row.id, proof, b"f" * 32, "10.0.0.3"),
            (row.id, b"p" * 32, exporter, "10.0.0.3"),
            (b"i" * 16, proof, exporter, "10.0.0.3"),
            (row.id, proof, exporter, "10.0.0.4"),
            (row.id, proof, exporter, "::1"),
        ):
            with pytest.raises(SessionExpired):
                sessions.resume(*arguments)

    @pytest.mark.parametrize(
        "principal", ["", "slave:s1", "user:alice", "user:alice#zz", "user:#" + "00" * 16, "master:m#00"]
    )
    def test_other_principals_have_no_session(self, principal: str) -> None:
        with pytest.raises(SessionExpired):
            build_sessions(World()).user_of(principal)

    def test_a_principal_of_another_name_with_a_live_session_id_is_refused(self) -> None:
        sessions = build_sessions(World())
        row, _ = sessions.create(verified(), "10.0.0.1/32")
        with pytest.raises(SessionExpired):
            sessions.user_of(principal_of("admin", row.id))

    def test_user_names_with_separators_come_back(self) -> None:
        assert split_principal(principal_of("a#b:c", b"i" * 16)) == ("a#b:c", b"i" * 16)

    def test_a_higher_epoch_ends_older_sessions_only(self) -> None:
        sessions = build_sessions(World())
        old, _ = sessions.create(verified(epoch=5), "10.0.0.1/32")
        new, _ = sessions.create(verified(epoch=9), "10.0.0.1/32")
        bob, _ = sessions.create(verified("bob"), "10.0.0.1/32")
        assert sessions.apply_epochs({"alice": 9, "carol": 3}) == [old]
        assert {row.id for row in sessions.rows()} == {new.id, bob.id}
        assert sessions.apply_epochs({"bob": 0}) == [bob]

    def test_renewed_rights_count_at_once(self) -> None:
        sessions = build_sessions(World())
        row, _ = sessions.create(verified(), "10.0.0.1/32")
        who = principal_of("alice", row.id)
        assert not sessions.user_of(who).may("/a", "r")
        sessions.renew_rights(verified("alice", 5, Right("alice", "/", "r")))
        assert sessions.user_of(who).may("/a", "r") and not sessions.user_of(who).is_admin

    def test_limits_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "MAX_SESSIONS", 3)
        monkeypatch.setattr(table, "MAX_PER_USER", 2)
        sessions = build_sessions(World())
        sessions.create(verified(), "10.0.0.1/32")
        sessions.create(verified(), "10.0.0.1/32")
        with pytest.raises(Busy, match="alice"):
            sessions.create(verified(), "10.0.0.1/32")
        sessions.create(verified("bob"), "10.0.0.1/32")
        with pytest.raises(Busy):
            sessions.create(verified("carol"), "10.0.0.1/32")

    def test_sessions_by_a_service_end_with_either_of_both(self) -> None:
        sessions = build_sessions(World())
        own, _ = sessions.create(verified(), "10.0.0.1/32")
        made = [sessions.create(verified(), "10.0.0.1/32", "svc", epoch)[0] for epoch in (3, 9)]
        assert sessions.acting("alice") == sessions.acting("svc") == {("svc", "alice")}
        assert sessions.of_pair("svc", "alice") == made or sessions.of_pair("svc", "alice") == made[::-1]
        assert sessions.of_pair("svc", "bob") == sessions.of_pair("other", "alice") == []
        assert sessions.apply_epochs({"svc": 9}) == made[:1]
        sessions.check_invariants()
        assert set(sessions.apply_epochs({"alice": 6})) == {own, made[1]}
        gone, _ = sessions.create(verified(epoch=7), "10.0.0.1/32", "svc", 9)
        assert sessions.apply_epochs({"svc": 0}) == [gone] and sessions.acting("alice") == set()
        sessions.check_invariants()

    def test_rights_of_such_a_session_are_renewed_apart(self) -> None:
        sessions = build_sessions(World())
        own, _ = sessions.create(verified(), "10.0.0.1/32")
        other, _ = sessions.create(verified(), "10.0.0.1/32", "svc", 1)
        sessions.renew_rights(Verified("alice", ["user", "admin"], [Right("alice", "/", "rw")], 5))
        mine, his = (sessions.user_of(principal_of("alice", row.id)) for row in (own, other))
        assert mine.is_admin and not his.is_admin and not his.may("/", "r")
        sessions.renew_acting("svc", Vouched("alice", [Right("alice", "/s3", "r")], 5, 2))
        his = sessions.user_of(principal_of("alice", other.id))
        assert his.may("/s3", "r") and sessions.user_of(principal_of("alice", own.id)) == mine
        assert sessions.apply_epochs({"svc": 2}) == []

    def test_a_service_takes_no_place_from_the_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table, "MAX_PER_USER", 1)
        sessions = build_sessions(World())
        sessions.create(verified(), "10.0.0.1/32", "svc", 1)
        sessions.create(verified(), "10.0.0.1/32", "other", 1)
        sessions.create(verified(), "10.0.0.1/32")
        with pytest.raises(Busy):
            sessions.create(verified(), "10.0.0.1/32", "svc", 1)

    def test_secrets_never_show(self) -> None:
        sessions = build_sessions(World())
        row, secret = sessions.create(verified(), "10.0.0.1/32")
        view = sessions.user_of(principal_of("alice", row.id))
        shown = repr([row, sessions, sessions.gmp_key(row), view])
        for hidden in (secret, row.secret_wrapped, KEY, sessions.gmp_key(row).secret):
            assert hidden.hex() not in shown and repr(hidden)[2:-1] not in shown

    @effort(60)
    @given(
        st.lists(st.tuples(st.sampled_from("cdeaxvw"), st.integers(0, 3), st.integers(0, 12)), max_size=40)
    )
    def test_any_order_of_events_keeps_table_and_index_together(
        self, events: list[tuple[str, int, int]]
    ) -> None:
        world = World()
        sessions = build_sessions(world)
        for kind, user, number in events:
            name = f"u{user}"
            step: dict[str, Callable[[], object]] = {
                "c": lambda: sessions.create(verified(name, number), "10.0.0.1/32"),  # noqa: B023
                "v": lambda: sessions.create(verified(name, number), "::1/128", "u0", number),  # noqa: B023
                "w": lambda: sessions.renew_acting("u0", Vouched(name, [], number, number)),  # noqa: B023
                "d": lambda: sessions.close([row.id for row in sessions.rows()[:number]]),  # noqa: B023
                "e": lambda: sessions.apply_epochs({name: number}),  # noqa: B023
                "a": lambda: setattr(world, "time", world.time + number * 3600),  # noqa: B023
                "x": sessions.expired,
            }
            step[kind]()
            sessions.check_invariants()


class TestAdmission:
    def test_fifty_a_second_and_the_rest_hear_later_and_later_times(self) -> None:
        admission = Admission(50, 50)
        waits = [admission.admit(0.0, 0.0, str(client)) for client in range(100)]
        assert waits[:50] == [0.0] * 50
        assert waits[50:] == sorted(set(waits[50:]))
        assert 0.9 < waits[-1] < 1.3

    def test_tokens_come_back_with_time(self) -> None:
        admission = Admission(50, 50)
        for client in range(60):
            admission.admit(0.0, 0.0, str(client))
        admitted = sum(admission.admit(1.0, 0.5, str(client)) == 0.0 for client in range(100))
        assert admitted == 50

    def test_jitter_spreads_the_return(self) -> None:
        one, two = Admission(1, 1), Admission(1, 1)
        one.admit(0, 0, ""), two.admit(0, 0, "")
        assert one.admit(0, 0.0, "") < two.admit(0, 0.9, "")

    def test_a_source_without_end_leaves_the_others_their_turn_and_alone_gets_all(self) -> None:
        admission = Admission(50, 50)
        admitted, refused = 0, 0
        for step in range(20_000):  # two seconds for one source to take, eight with another beside it
            now = step / 2000
            admitted += admission.admit(now, 0.0, "greedy") == 0.0
            if step >= 4000 and step % 400 == 0:
                refused += admission.admit(now, 0.0, "other") > 0
        assert refused == 0
        assert 25 + 0.95 * (10 * 50 - 40) < admitted < 50 + 10 * 50 - 40

    def test_what_one_source_was_told_is_told_to_no_other(self) -> None:
        admission = Admission(50, 50)
        for _ in range(5000):
            admission.admit(0.0, 0.0, "greedy")
        waits = [admission.admit(0.0, 0.0, str(client)) for client in range(50)]
        assert waits[:10] == [0.0] * 10 and max(waits) < 2

    @pytest.mark.parametrize("per_s", [1, 2, 3])
    def test_where_few_may_log_in_a_source_may_too(self, per_s: int) -> None:
        admission = Admission(per_s, per_s)
        admitted = sum(admission.admit(second, 0.0, "one") == 0.0 for second in range(20))
        assert admitted == 20

    def test_sources_beyond_the_bound_are_forgotten_the_longest_silent_first(self) -> None:
        admission = Admission(10**6, 10**6)
        for client in range(SOURCES + 100):
            admission.admit(0.0, 0.0, str(client))
            admission.admit(0.0, 0.0, "again and again")
        assert len(admission) == SOURCES and "again and again" in admission._sources

    def test_a_network_of_one_address(self) -> None:
        assert single_network("10.0.0.1") == "10.0.0.1/32" and single_network("::1") == "::1/128"
