from __future__ import annotations

from typing import Any

import pytest

from interlock.errors import BadDuration, BadInput, BadName, Lapsed, TooLarge
from interlock.nouns.grants.lock import LockAcquired, LockBusy, LockFenced, LockReleased
from interlock.testing.testbed import Client, Testbed

BAD_NAMES = [
    "",
    "x" * 201,
    "-rf",
    "..",
    ".",
    "a/../b",
    "a//b",
    "/a",
    "a/",
    " a",
    "a ",
    "*",
    "a\nb",
    "a\0b",
    "a\x1b[31mb",
    "a\u202eb",
    "a\u200bb",
    "a\ufe0f",
    "a\u3164b",
    "a\u00a0b",
    "a\u0085b",
    "a\u2028b",
    "ü" * 101,
]
GOOD_NAMES = [
    *("a", "x" * 200, "pipeline:7", "worker:3/slot.1", "a@b", "a-b_c", "0", "..a", "a.."),
    *("src/[id]/page.tsx", "größe", "ü" * 100, "a b", "a%2Fb", "a\\b", "١٢٣", "100%", "*.py", "#1"),
    *(
        "a,b",
        "it's",
        'say "x"',
        "a=b",
        "a=2",
        "a+b",
        "漢字/かな",
        "👍",
        "{x}",
        "$HOME",
        "~",
        "%",
        "a|b",
    ),
]
BAD_DURATIONS: list[Any] = [
    *(-1, -0.001, "-5s", "", "5 s", "5y", "1e3", "x"),
    *(float("nan"), 1e12, "400d"),
]


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_in_one_plain_line_before_anything_is_sent(
    stage: Testbed, ada: Client, name: str
) -> None:
    revision = stage.store.read().revision
    for call in (
        lambda: ada.run(ada.locks.acquire(name)),
        lambda: ada.run(ada.locks.release(name)),
        lambda: ada.run(ada.locks.heartbeat(name)),
        lambda: ada.run(ada.locks.show(name)),
        lambda: ada.run(ada.agents.show(name)),
        lambda: ada.run(ada.fleet.why(f"lock/{name}")),
        lambda: stage.client(name),
    ):
        with pytest.raises(BadName) as raised:
            call()
        message = str(raised.value)
        assert message.isprintable()
        assert len(message) < 400
    assert stage.store.read().revision == revision


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_good_name_works_everywhere(ada: Client, name: str) -> None:
    assert isinstance(ada.run(ada.locks.acquire(name)), LockAcquired)
    assert [lock.lock for lock in ada.run(ada.locks.list())] == [name]
    assert isinstance(ada.run(ada.locks.release(name)), LockReleased)


@pytest.mark.parametrize("duration", BAD_DURATIONS)
def test_a_bad_duration_is_refused(ada: Client, duration: Any) -> None:
    for term in ("ttl", "wait", "max_hold"):
        with pytest.raises(BadDuration):
            ada.run(ada.locks.acquire("merge", **{term: duration}))
    with pytest.raises(BadDuration):
        ada.run(ada.agents.join(ttl=duration))
    assert ada.run(ada.locks.show("merge")).state == "free"


@pytest.mark.parametrize("term", ["ttl", "max_hold"])
def test_a_lease_shorter_than_the_store_can_measure_is_refused(ada: Client, term: str) -> None:
    for duration in (0, 0.1, "499ms"):
        with pytest.raises(BadDuration, match=r"500ms|0\.5"):
            ada.run(ada.locks.acquire("merge", **{term: duration}))  # type: ignore[arg-type]
    assert isinstance(ada.run(ada.locks.acquire("merge", **{term: "500ms"})), LockAcquired)  # type: ignore[arg-type]


def test_metadata_above_the_limit_are_refused(ada: Client) -> None:
    with pytest.raises(TooLarge):
        ada.run(ada.locks.acquire("merge", metadata="x" * 16 * 1024))
    assert isinstance(ada.run(ada.locks.acquire("merge", metadata="x" * 16_000)), LockAcquired)


@pytest.mark.parametrize("metadata", [object(), {1, 2, object()}, {"x": object()}, "\ud800"])
def test_metadata_that_are_not_json_are_refused(ada: Client, metadata: object) -> None:
    with pytest.raises(BadInput):
        ada.run(ada.locks.acquire("merge", metadata=metadata))


def test_metadata_that_contain_themselves_are_refused(ada: Client) -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(BadInput):
        ada.run(ada.locks.acquire("merge", metadata=loop))


def test_metadata_come_back_as_they_went(ada: Client) -> None:
    metadata = {"zeile": "ü\n\0", "n": [1, 2.5, None, True]}
    ada.run(ada.locks.acquire("merge", metadata=metadata))
    assert ada.run(ada.locks.show("merge")).metadata == metadata


def test_nobody_in_particular_cannot_hold_anything(stage: Testbed) -> None:
    from interlock.client_context import Context
    from interlock.nouns.grants.calls import LockCalls
    from interlock.steps import drive

    context = Context(stage.store, None, "", None)
    with pytest.raises(BadInput, match="who are you"):
        drive(LockCalls(context).acquire("merge"), stage.store)
    assert drive(LockCalls(context).list(), stage.store) == ()


def test_a_session_that_is_over_cannot_be_resumed(stage: Testbed, ada: Client) -> None:
    shell = stage.client("ada", ttl=None)
    stage.clock.advance(31.0)
    with pytest.raises(Lapsed):
        shell.run(shell.context.resume(ada.session))
    with pytest.raises(Lapsed):
        shell.run(shell.context.resume("ses_nobody"))


def test_a_session_cannot_be_resumed_under_another_name(stage: Testbed, ada: Client) -> None:
    with pytest.raises(BadInput, match="belongs to ada"):
        stage.client("bob", ttl=None).run(stage.client("bob", ttl=None).context.resume(ada.session))


def test_the_record_refuses_nonsense(ada: Client) -> None:
    for after, limit in ((-1, 1), (0, 0), (0, -5)):
        with pytest.raises(BadInput):
            ada.run(ada.record.log(after=after, limit=limit))


def test_without_a_session_a_grant_lives_by_a_ttl_of_its_own(stage: Testbed) -> None:
    shell = stage.client("ada", ttl=None)
    held = shell.run(shell.locks.acquire("merge"))
    assert isinstance(held, LockAcquired)
    assert held.expires_in == 900.0
    stage.clock.advance(899.0)
    other = stage.client("bob", ttl=None)
    assert isinstance(other.run(other.locks.acquire("merge")), LockBusy)


def test_a_wait_ends_with_busy_when_its_time_is_up(stage: Testbed, ada: Client) -> None:
    ada.run(ada.locks.acquire("merge", ttl="1d"))
    bob = stage.client("bob", ttl=86400.0)
    started = stage.clock.monotonic()
    outcome = bob.run(bob.locks.acquire("merge", wait="90s"))
    assert isinstance(outcome, LockBusy)
    assert outcome.waiters == 0
    assert 90.0 <= stage.clock.monotonic() - started < 91.0


def test_a_grant_can_depend_on_another_one(stage: Testbed, ada: Client) -> None:
    from interlock.core.decision import Proof

    first = ada.run(ada.locks.acquire("first"))
    assert isinstance(first, LockAcquired)
    proof = Proof(thing="lock/first", grant=first.grant, token=first.token or 0)
    assert isinstance(ada.run(ada.locks.acquire("second", given=[proof])), LockAcquired)
    ada.run(ada.locks.release("first"))
    assert ada.run(ada.locks.acquire("third", given=[proof])) == LockFenced(lock="first")
    assert ada.run(ada.locks.show("third")).state == "free"
