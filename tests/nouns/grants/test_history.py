from __future__ import annotations

import itertools
from typing import Any

from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent
from interlock.runtime.history import history_events

BASE = 1000


class Log:
    """Entries as they come; each a second after the one before, unless it says when."""

    def __init__(self) -> None:
        self.lines: list[RecordLine] = []
        self._numbers = itertools.count(1)

    def __call__(
        self, agent: str, verb: str, outcome: str, *events: str, **more: Any
    ) -> RecordLine:
        number = next(self._numbers)
        fields: dict[str, Any] = {
            "revision": number,
            "at": float(number),
            "hash": "",
            "session": f"ses_{agent}",
            "thing": "lock/merge",
            "trace": f"t-{agent}",
        }
        said = [(*event.split(" "), "") for event in events]
        told = tuple(Event(name, agent_, thing) for name, agent_, thing, *_ in said)
        line = RecordLine(agent=agent, verb=verb, outcome=outcome, events=told, **(fields | more))
        self.lines.append(line)
        return line

    def story(self, thing: str = "lock/merge") -> list[HistoryEvent]:
        return list(history_events(self.lines, thing, BASE))


def test_an_acquire_has_the_base_and_its_revision_for_a_token() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    assert log.story() == [
        HistoryEvent(
            revision=1,
            at=1.0,
            agent="ada",
            what="acquired",
            thing="lock/merge",
            token=1001,
            session="ses_ada",
            trace="t-ada",
        )
    ]


def test_a_release_says_how_long_it_was_held() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("ada", "lock.release", "released", "lock:released ada", at=4.2)
    released = log.story()[-1]
    assert (released.what, released.held, released.token) == ("released", 3.2, 1001)


def test_a_hand_over_is_told_from_both_sides() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("bob", "lock.wait", "waiting")
    log("ada", "lock.release", "released", "lock:released ada", "lock:acquired bob", at=2.4)
    waiting, released, acquired = log.story()[1:]
    assert (waiting.what, waiting.agent, waiting.behind) == ("waiting", "bob", ("ada",))
    assert (released.agent, released.went_to) == ("ada", ("bob",))
    assert (acquired.agent, acquired.token, acquired.came_from) == ("bob", 1003, ("ada",))
    assert (acquired.waited, acquired.session, acquired.trace) == (0.4, "ses_bob", "t-bob")
    assert acquired.by == "ada"


def test_a_stale_grant_is_told_as_reclaimed_and_by_whom() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("bob", "lock.acquire", "reclaimed", "lock:reclaimed ada", "lock:acquired bob")
    log("keeper", "lock.reclaim", "reclaimed", "lock:reclaimed bob")
    lost, took, cleared = log.story()[1:]
    assert (lost.what, lost.agent, lost.by, lost.held) == ("reclaimed", "ada", "bob", 1.0)
    assert (lost.session, lost.trace) == ("ses_ada", "t-ada")
    assert (took.agent, took.came_from) == ("bob", ("ada",))
    assert (cleared.agent, cleared.by, cleared.went_to) == ("bob", "keeper", ())


def test_a_refusal_says_why() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("bob", "lock.release", "not_owner")
    log("cleo", "lock.beat", "fenced")
    log("dan", "lock.acquire", "deadlock")
    refused = [(each.agent, each.what, each.reason) for each in log.story()[1:]]
    assert refused == [
        ("bob", "refused", "not_owner"),
        ("cleo", "refused", "fenced"),
        ("dan", "refused", "deadlock"),
    ]


def test_who_withdraws_says_how_long_it_waited() -> None:
    log = Log()
    log("bob", "lock.wait", "waiting")
    log("bob", "lock.withdraw", "busy")
    withdrew = log.story()[-1]
    assert (withdrew.what, withdrew.waited) == ("withdrew", 1.0)


def test_what_began_before_the_story_has_no_span() -> None:
    log = Log()
    log("ada", "lock.release", "released", "lock:released ada")
    assert log.story()[0].held is None
    assert log.story()[0].token is None


def test_a_clock_that_went_back_makes_no_negative_span() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada", at=10.0)
    log("ada", "lock.release", "released", "lock:released ada", at=9.0)
    assert log.story()[-1].held == 0.0


def test_nobody_is_behind_a_holder_whose_end_was_not_heard() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("bob", "lock.acquire", "acquired", "lock:acquired bob")
    log("cleo", "lock.wait", "waiting")
    assert log.story()[-1].behind == ("bob",)


def test_whoever_leaves_releases_what_it_held() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    events = ("agent:left ada", "lock:released ada lock/merge", "lock:acquired bob lock/merge")
    log("ada", "agent.leave", "left", *events, thing="agent/ada", deleted=("sessions/ses_ada",))
    released, acquired = log.story()[1:]
    assert (released.what, released.reason, released.held) == ("released", "left", 1.0)
    assert (acquired.agent, acquired.token) == ("bob", 1002)


def test_an_agent_has_its_sessions_and_all_that_they_held() -> None:
    log = Log()
    log("ada", "agent.join", "joined", "agent:joined ada", thing="agent/ada")
    log("ada", "lock.acquire", "acquired", "lock:acquired ada")
    log("ada", "acquire", "acquired", "lock:acquired ada lock/x", "semaphore:acquired ada sem/y",
        thing="lock/x+sem/y")  # fmt: skip
    log("bob", "lock.acquire", "reclaimed", "lock:reclaimed ada", "lock:acquired bob")
    log("keeper", "agent.clear", "cleared", "agent:lapsed ada", thing="agent/ada",
        session="ses_keeper", deleted=("sessions/ses_ada",))  # fmt: skip
    told = [(each.what, each.thing, each.session) for each in log.story("agent/ada")]
    assert told == [
        ("joined", "agent/ada", "ses_ada"),
        ("acquired", "lock/merge", "ses_ada"),
        ("acquired", "lock/x", "ses_ada"),
        ("acquired", "sem/y", "ses_ada"),
        ("reclaimed", "lock/merge", "ses_ada"),
        ("lapsed", "agent/ada", "ses_ada"),
    ]
    assert log.story("agent/ses_ada") == log.story("agent/ada")


def test_a_session_is_told_without_the_others_of_its_agent() -> None:
    log = Log()
    log("ada", "lock.acquire", "acquired", "lock:acquired ada", session="ses_1")
    log("ada", "lock.wait", "waiting", session="ses_2")
    log("ada", "lock.release", "released", "lock:released ada", "lock:acquired ada",
        session="ses_1")  # fmt: skip
    told = [(each.what, each.waited) for each in log.story("agent/ses_2")]
    assert told == [("waiting", None), ("acquired", 1.0)]


def test_of_two_sessions_of_an_agent_the_first_to_wait_is_the_first_to_get_it() -> None:
    log = Log()
    log("ada", "lock.wait", "waiting", session="ses_1")
    log("ada", "lock.wait", "waiting", session="ses_2")
    log("bob", "lock.release", "released", "lock:released bob", "lock:acquired ada")
    assert (log.story()[-1].session, log.story()[-1].waited) == ("ses_1", 2.0)


def test_a_session_that_lapsed_waits_for_nothing() -> None:
    log = Log()
    log("ada", "lock.wait", "waiting", session="ses_1")
    log("ada", "lock.wait", "waiting", session="ses_2")
    log("keeper", "agent.clear", "cleared", "agent:lapsed ada", thing="agent/ada",
        deleted=("sessions/ses_1",))  # fmt: skip
    log("bob", "lock.release", "released", "lock:released bob", "lock:acquired ada")
    assert log.story()[-1].session == "ses_2"


def test_an_agents_story_does_not_guess_whom_it_waits_for() -> None:
    log = Log()
    log("ada", "lock.release", "released", "lock:released ada", "lock:acquired bob")
    log("ada", "lock.wait", "waiting")  # bob's release to cleo is not about ada
    assert log.story("agent/ada")[-1].behind == ()


def test_a_semaphore_has_several_holders() -> None:
    log = Log()
    log("ada", "sem.acquire", "acquired", "semaphore:acquired ada", thing="sem/b")
    log("bob", "sem.acquire", "acquired", "semaphore:acquired bob", thing="sem/b")
    log("cleo", "sem.wait", "waiting", thing="sem/b")
    log("bob", "sem.release", "released", "semaphore:released bob", "semaphore:acquired cleo",
        thing="sem/b")  # fmt: skip
    log("ada", "sem.resize", "resized", thing="sem/b")
    waiting, released, acquired, resized = log.story("sem/b")[2:]
    assert waiting.behind == ("ada", "bob")
    assert (released.held, released.token) == (2.0, 1002)
    assert (acquired.waited, acquired.came_from) == (1.0, ("bob",))
    assert resized.what == "resized"


def test_one_of_several_grants_of_an_agent_ends_without_a_span() -> None:
    log = Log()
    for _ in range(2):
        log("ada", "sem.acquire", "acquired", "semaphore:acquired ada", thing="sem/b")
    log("ada", "sem.release", "released", "semaphore:released ada", thing="sem/b")
    log("ada", "sem.release", "released", "semaphore:released ada", thing="sem/b")
    first, second = log.story("sem/b")[2:]
    assert first.held is None
    assert second.held == 2.0


def test_a_task_of_an_import_is_told_from_when_all_of_them_are_there() -> None:
    log = Log()
    hidden = {"hangs/+imp_1/t1": "", "hangs/+imp_1/t2": ""}
    log("ada", "task.import", "None", thing="plan/imp_1", put=hidden)
    log(
        "ada", "task.import", "True",
        "task:published ada task/t1", "task:ready  task/t1", "task:published ada task/t2",
        thing="plan/imp_1", put={"hangs/t1/t2": ""},
    )  # fmt: skip
    (first,) = log.story("task/t1")
    assert (first.what, first.agent, first.on) == ("published", "ada", "")
    (second,) = log.story("task/t2")
    assert (second.what, second.on) == ("published", "t1")


def test_what_a_need_left_over_goes_on_by_whomever() -> None:
    log = Log()
    log("ada", "task.unblock", "1", "task:ready  task/t1", thing="task/t0", put={"hangs/t3/t2": ""})
    (first,) = log.story("task/t1")
    assert (first.what, first.agent, first.on, first.by) == ("unblocked", "", "t0", "")
    (second,) = log.story("task/t2")
    assert (second.what, second.on) == ("blocked", "t3")
