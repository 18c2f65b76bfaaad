from __future__ import annotations

from typing import Any

import pytest

from interlock.core.decision import Event
from interlock.core.entry import Entry
from interlock.core.filter import RecordFilter

RELEASE = Entry(
    at=100.0,
    agent="bob",
    session="ses_b",
    verb="lock.release",
    outcome="released",
    thing="lock/merge",
    trace="t-1",
    put={"locks/merge": "digest"},
    events=(Event("lock:released", "bob"), Event("lock:acquired", "ada")),
)
LEAVE = Entry(
    at=200.0,
    agent="cleo",
    session="ses_c",
    verb="agent.leave",
    thing="agent/cleo",
    deleted=("sessions/ses_c", "locks/team%2Fdeploy"),
    events=(Event("agent:left", "cleo"), Event("lock:released", "cleo", "lock/team/deploy")),
)
SEVERAL = Entry(
    at=300.0, agent="dan", verb="acquire", thing="lock/a+sem/b", put={"semaphores/c": "digest"}
)
CLEAR = Entry(at=400.0, agent="keeper", verb="agent.clear", deleted=("sessions/ses_x",))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [RELEASE, LEAVE, SEVERAL, CLEAR]),
        ({"by": "bob"}, [RELEASE]),
        ({"by": "ada"}, [RELEASE]),
        ({"by": "ses_b"}, [RELEASE]),
        ({"by": "ses_x"}, [CLEAR]),
        ({"by": "bo"}, []),
        ({"verb": "lock.release"}, [RELEASE]),
        ({"verb": "lock"}, [RELEASE]),
        ({"verb": "loc"}, []),
        ({"verb": "agent"}, [LEAVE, CLEAR]),
        ({"verb": "acquire"}, [SEVERAL]),
        ({"thing": "lock/merge"}, [RELEASE]),
        ({"thing": "lock/team/deploy"}, [LEAVE]),
        ({"thing": "agent/cleo"}, [LEAVE]),
        ({"thing": "agent/ses_c"}, [LEAVE]),
        ({"thing": "lock/a"}, [SEVERAL]),
        ({"thing": "sem/b"}, [SEVERAL]),
        ({"thing": "sem/c"}, [SEVERAL]),
        ({"thing": "lock/b"}, []),
        ({"since": 200.0}, [LEAVE, SEVERAL, CLEAR]),
        ({"until": 200.0}, [RELEASE, LEAVE]),
        ({"since": 150.0, "until": 250.0}, [LEAVE]),
        ({"trace": "t-1"}, [RELEASE]),
        ({"trace": "t"}, []),
        ({"by": "bob", "thing": "lock/other"}, []),
    ],
    ids=str,
)
def test_a_filter_keeps_what_it_asks_for(asked: dict[str, Any], found: list[Entry]) -> None:
    assert [e for e in (RELEASE, LEAVE, SEVERAL, CLEAR) if RecordFilter(**asked).keeps(e)] == found


def test_the_deletion_of_a_things_item_is_about_it() -> None:
    entry = Entry(verb="agent.leave", thing="agent/ada", deleted=("locks/a%2Fb",))
    assert RecordFilter(thing="lock/a/b").keeps(entry)
