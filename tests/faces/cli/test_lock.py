"""Each outcome with its word, its exit status and its JSON."""

from __future__ import annotations

import pytest
from tests.faces.shell import Here, Shell, until

from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op


def test_a_free_lock_is_acquired_with_a_token(ada: Shell) -> None:
    status, answer = ada.json("lock", "acquire", "merge", "--ttl", "30s", "--wait", "5s")
    assert status == 0
    assert answer["outcome"] == "acquired"
    assert answer["lock"] == "merge"
    assert answer["holder"] == "ada"
    assert answer["expires_in"] == 30
    assert isinstance(answer["token"], int)


def test_a_grant_from_a_shell_lives_fifteen_minutes(ada: Shell) -> None:
    for words in (("a",), ("b", "--wait", "1s")):
        _, answer = ada.json("lock", "acquire", *words)
        assert answer["expires_in"] == 900


def test_a_held_lock_is_busy_and_names_its_holder(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    status, answer = ada.json("lock", "acquire", "merge", "--agent", "bob")
    assert status == 1
    assert answer["outcome"] == "busy"
    assert answer["holder"] == "ada"
    assert 890 < answer["expires_in"] <= 900
    said = ada.run("lock", "acquire", "merge", "--agent", "bob")
    assert "held by ada" in said.out


def test_an_expired_wait_is_the_plain_busy(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    status, answer = ada.json("lock", "acquire", "merge", "--agent", "bob", "--wait", "50ms")
    assert (status, answer["outcome"], answer["holder"]) == (1, "busy", "ada")
    assert ada.json("lock", "show", "merge")[1]["waiters"] == []
    assert ada.json("agent", "list")[1]["agents"] == []


def test_a_grant_is_extended_by_its_token(ada: Shell) -> None:
    _, first = ada.json("lock", "acquire", "merge")
    status, again = ada.json("lock", "acquire", "merge", "--token", str(first["token"]))
    assert (status, again["outcome"], again["token"]) == (0, "extended", first["token"])
    status, beat = ada.json("lock", "beat", "merge", "--token", str(first["token"]))
    assert (status, beat["outcome"]) == (0, "extended")


def test_the_same_name_in_another_process_does_not_extend(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    status, answer = ada.json("lock", "acquire", "merge")
    assert (status, answer["outcome"], answer["holder"]) == (1, "busy", "ada")
    assert "--token" in ada.run("lock", "acquire", "merge").err


def test_a_session_needs_no_token(ada: Shell) -> None:
    _, joined = ada.json("agent", "join")
    ada.exported["INTERLOCK_SESSION"] = joined["session"]
    _, first = ada.json("lock", "acquire", "merge")
    status, again = ada.json("lock", "acquire", "merge")
    assert (status, again["outcome"], again["token"]) == (0, "extended", first["token"])
    assert ada.json("lock", "beat", "merge")[1]["outcome"] == "extended"
    assert ada.json("lock", "release", "merge")[1]["outcome"] == "released"


def test_a_released_lock_is_free_and_releasing_again_does_no_harm(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge")
    token = str(grant["token"])
    assert ada.json("lock", "release", "merge", "--token", token) == (
        0,
        {"outcome": "released", "later": False, "lock": "merge", "next": ""},
    )
    assert ada.json("lock", "release", "merge", "--token", token) == (
        0,
        {"outcome": "already_free", "lock": "merge"},
    )


def test_only_the_holder_releases(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge")
    words = ("lock", "release", "merge", "--agent", "bob", "--token", str(grant["token"]))
    assert ada.json(*words) == (
        1,
        {"outcome": "not_owner", "lock": "merge", "holder": "ada", "stale": False},
    )


def test_an_older_token_is_fenced(ada: Shell) -> None:
    _, old = ada.json("lock", "acquire", "merge")
    ada.run("lock", "release", "merge", "--token", str(old["token"]))
    _, new = ada.json("lock", "acquire", "merge", "--agent", "bob")
    status, answer = ada.json("lock", "release", "merge", "--token", str(old["token"]))
    assert status == 1
    assert answer == {
        "outcome": "fenced",
        "lock": "merge",
        "holder": "bob",
        "token": new["token"],
        "by": "",
        "reason": "",
    }
    assert ada.json("lock", "beat", "merge", "--token", str(old["token"]))[0] == 1


def test_a_lapsed_grant_is_reclaimed(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge", "--ttl", "500ms")
    until(lambda: ada.json("lock", "show", "merge")[1]["state"] == "stale")
    refused = ada.json("lock", "release", "merge", "--agent", "bob")[1]
    assert refused == {"outcome": "not_owner", "lock": "merge", "holder": "ada", "stale": True}
    status, answer = ada.json("lock", "acquire", "merge", "--agent", "bob")
    assert (status, answer["outcome"], answer["reclaimed_from"]) == (0, "reclaimed", "ada")


def test_whoever_waits_gets_it_with_the_release(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge")
    waiter = ada.start("lock", "acquire", "merge", "--agent", "bob", "--wait", "50s", "--json")
    until(lambda: ada.json("lock", "show", "merge")[1].get("waiters") == ["bob"])
    released = ada.json("lock", "release", "merge", "--token", str(grant["token"]))[1]
    assert released["next"] == "bob"
    out, _ = waiter.communicate()
    assert '"outcome":"acquired"' in out
    shown = ada.json("lock", "show", "merge")[1]
    assert (shown["holder"], shown["state"]) == ("bob", "held")
    assert shown["expires_in"] > 800, "the grant outlives the command that waited for it"


def test_a_stopped_waiter_leaves_the_queue(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    for signum, status in ((2, 130), (15, 143)):
        waiter = ada.start("lock", "acquire", "merge", "--agent", "bob", "--wait", "forever")
        until(lambda: ada.json("lock", "show", "merge")[1].get("waiters") == ["bob"])
        waiter.send_signal(signum)
        out, err = waiter.communicate()
        assert (waiter.returncode, out, err) == (status, "", "")
        assert ada.json("lock", "show", "merge")[1]["waiters"] == []
        assert ada.json("agent", "list")[1]["agents"] == []


def test_locks_are_listed_and_explained(ada: Shell) -> None:
    assert ada.json("lock", "list") == (0, {"locks": [], "count": 0})
    _, grant = ada.json("lock", "acquire", "merge", "--metadata", '{"branch": "main"}')
    _, listed = ada.json("lock", "list")
    assert [lock["lock"] for lock in listed["locks"]] == ["merge"]
    assert ada.json("lock", "show", "merge")[1]["metadata"] == {"branch": "main"}
    for thing in ("merge", "lock/merge"):
        _, why = ada.json("why", thing)
        assert (why["blocked"], why["by"], why["thing"]) == (True, "ada", "lock/merge")
    assert f"token {grant['token']}" in ada.run("why", "merge").out
    assert ada.json("why", "free")[1]["blocked"] is False


def test_a_maximum_hold_ends_a_grant_that_is_renewed(ada: Shell) -> None:
    _, grant = ada.json("lock", "acquire", "merge", "--max-hold", "500ms")
    token = str(grant["token"])
    until(lambda: ada.json("lock", "beat", "merge", "--token", token)[1]["outcome"] == "fenced")


def test_who_is_interrupted_while_it_tends_the_record_has_its_answer(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant is committed: without the answer nobody would know its token."""

    def interrupted(_: ClientHousekeeping, __: Actor) -> Op[None]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "random_below", lambda _runner, number: number - 1)
    monkeypatch.setattr(ClientHousekeeping, "run", interrupted)
    result = here.run("lock", "acquire", "merge", "--json")
    assert (result.status, result.json["outcome"]) == (130, "acquired")


def test_an_operator_ends_a_grant_and_the_holder_reads_why(ada: Shell) -> None:
    _, got = ada.json("lock", "acquire", "merge")
    words = ("lock", "break", "merge", "--agent", "maria")
    done = ada.run(*words)
    assert (done.status, "say why" in done.err) == (2, True)
    status, broken = ada.json(*words, "--reason", "ada hangs")
    assert status == 0
    assert broken["outcome"] == "broken"
    assert (broken["holder"], broken["token"]) == ("ada", got["token"])
    for verb in ("release", "beat", "acquire"):
        late = ada.run("lock", verb, "merge", "--token", str(got["token"]))
        assert late.status == 1
        assert late.out == "fenced merge: that grant is over; maria ended it\n  | ada hangs\n"
    assert "maria ended the grant of ada" in ada.run("why", "lock/merge").out
    assert "ended by maria: 'ada hangs'" in ada.run("record", "explain", "lock/merge").out
    assert "lock.break broken" in ada.run("record", "log", "--verb", "lock.break").out


def test_acquiring_with_the_token_of_a_lock_that_moved_on_is_fenced(ada: Shell) -> None:
    _, old = ada.json("lock", "acquire", "merge")
    ada.run("lock", "release", "merge", "--token", str(old["token"]))
    _, new = ada.json("lock", "acquire", "merge", "--agent", "bob")
    status, late = ada.json("lock", "acquire", "merge", "--token", str(old["token"]))
    assert (status, late["outcome"]) == (1, "fenced")
    assert (late["holder"], late["token"]) == ("bob", new["token"])
