"""Questions, answers and decisions at the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import pytest
from tests.faces.cli.test_message import inbox, plainly
from tests.faces.shell import Here, Shell, until

import interlock


def known(shell: Shell, *names: str) -> None:
    for name in names:
        assert shell.run("inbox", "--agent", name).status == 0


def question(shell: Shell, *words: str, agent: str = "bob") -> dict[str, Any]:
    """The question that waits for an agent, as soon as it does."""

    def waits() -> Any:
        return shell.json("inbox", "--kind", "query", "--agent", agent, *words)[1].get("messages")

    found: dict[str, Any] = until(waits, "a question")[0]
    return found


def asked(shell: Shell, *words: str) -> subprocess.Popen[str]:
    return shell.start("query", *words, "--timeout", "60s", "--json")


def answer(asker: subprocess.Popen[str]) -> tuple[int, Any]:
    out, err = asker.communicate(timeout=60)
    assert err == ""
    return asker.returncode, json.loads(out)


def test_a_question_is_answered_from_another_shell(ada: Shell) -> None:
    known(ada, "bob")
    asker = asked(ada, "bob", "API base URL?")
    found = question(ada)
    assert (found["from"], found["data"]) == ("ada", "API base URL?")
    assert 0 < found["expires_in"] <= 60
    replied = ada.json("reply", found["id"], "https://example.org", "--agent", "bob")
    assert replied == (0, {"outcome": "replied", "query": found["id"], "to": "ada"})
    status, told = answer(asker)
    assert told.pop("replied_at") > 0
    assert told.pop("replied_at_iso").startswith("20")
    assert (status, told) == (
        0,
        {
            "outcome": "answered",
            "query": found["id"],
            "answer": "https://example.org",
            "by": "bob",
            "age": None,
        },
    )
    assert ada.json("inbox", "--agent", "bob")[1]["messages"] == [], "acknowledged with it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_asker_that_is_stopped_takes_its_question_back(
    ada: Shell, number: signal.Signals
) -> None:
    known(ada, "bob")
    asker = asked(ada, "bob", "still there?")
    id_ = question(ada)["id"]
    asker.send_signal(number)
    told = (
        "interlock: interrupted, so the question is taken back; one that is asked with --id stays\n"
    )
    assert asker.communicate(timeout=60) == ("", told)
    assert asker.returncode == 128 + number
    late = ada.run("reply", id_, "yes", "--agent", "bob")
    assert (late.status, late.out) == (1, f"late {id_}: its asker cancelled it\n")
    assert ada.json("reply", id_, "yes", "--agent", "bob")[1]["state"] == "cancelled"


def test_an_asker_that_was_killed_asks_again_and_has_the_answer(ada: Shell) -> None:
    known(ada, "bob")
    asker = asked(ada, "bob", "which one?", "--id", "qry_1")
    question(ada)
    asker.kill()
    asker.communicate()
    assert ada.run("reply", "qry_1", "--data", '{"n": 7}', "--agent", "bob").status == 0
    status, told = ada.json("query", "bob", "which one?", "--id", "qry_1")
    assert (status, told["answer"], told["by"]) == (0, {"n": 7}, "bob")


def test_whoever_is_shown_a_question_is_told_that_its_answer_acknowledges_it(ada: Shell) -> None:
    known(ada, "bob")
    asker = asked(ada, "bob", "which one?", "--id", "qry_1")
    question(ada)
    answers = "interlock reply ID TEXT\n"
    for look in ("wait", "inbox"):
        out = ada.run(look, "--agent", "bob").out
        assert out.endswith(f"\nto answer, and so acknowledge: {answers}")
    ada.run("send", "bob", "hello")
    out = ada.run("wait", "--agent", "bob").out
    assert out.endswith(f"\nto acknowledge: interlock ack ID...; to answer: {answers}")
    ada.run("reply", "qry_1", "this", "--agent", "bob")
    assert answer(asker)[0] == 0


def test_a_question_that_is_taken_back_has_no_answer(ada: Shell) -> None:
    known(ada, "bob")
    asker = ada.start("query", "bob", "which one?", "--id", "qry_1", "--timeout", "60s")
    question(ada)
    assert ada.run("cancel", "qry_1") == (0, "cancelled qry_1\n", "")
    out, _ = asker.communicate(timeout=60)
    assert (asker.returncode, out) == (
        1,
        "taken back qry_1: its asker cancelled it; ask again if you still need the answer\n",
    )


def test_null_is_something_to_say(ada: Shell) -> None:
    known(ada, "bob")
    asker = ada.start("query", "bob", "--data", "null", "--id", "qry_1", "--json")
    assert question(ada)["data"] is None
    assert ada.run("reply", "qry_1", "--data", "null", "--agent", "bob").status == 0
    asker.communicate(timeout=60)
    assert asker.returncode == 0


def test_a_named_question_outlives_an_interruption(ada: Shell) -> None:
    known(ada, "bob")
    asker = asked(ada, "bob", "which one?", "--id", "qry_1")
    question(ada)
    asker.send_signal(signal.SIGINT)
    _, told = asker.communicate(timeout=60)
    assert re.fullmatch(
        r"interlock: interrupted; qry_1 stays open for up to \d+ s:"
        r" 'interlock cancel qry_1', or ask again with this --id\n",
        told,
    )
    assert ada.run("reply", "qry_1", "this", "--agent", "bob").status == 0


def test_a_question_to_whoever_is_able_is_answered_once(ada: Shell) -> None:
    ada.run("agent", "join", "--agent", "bob", "--can", "rust")
    asker = asked(ada, "?rust", "which edition?")
    id_ = question(ada, "--can", "rust")["id"]
    assert ada.json("inbox", "--agent", "bob")[1]["messages"] == []
    assert ada.run("reply", id_, "2024", "--agent", "cy") == (
        1,
        f"not owner {id_}: it is for others who can do rust; if you can, say so: --can rust\n",
        "",
    )
    assert ada.run("reply", id_, "2024", "--can", "rust", "--agent", "bob").out == (
        f"replied {id_}; ada has the answer\n"
    )
    assert answer(asker)[1]["by"] == "bob"
    late = ada.run("reply", id_, "2021", "--can", "rust", "--agent", "cy")
    assert (late.status, late.out) == (1, f"late {id_}: bob has answered it already\n")


def test_a_reply_to_what_is_not_yours_is_refused(here: Here) -> None:
    known(here, "bob")
    with interlock.connect(agent="ada") as fleet:
        fleet.messages.query("bob", "x", timeout=0.0, id="qry_late")
    assert here.run("reply", "qry_late", "x", "--agent", "bob").out == (
        "late qry_late: it has expired, and its asker no longer waits; mail may still help\n"
    )
    assert here.run("reply", "qry_late", "x", "--agent", "eve") == (
        1,
        "not owner qry_late: it is for bob to do, not for you; --agent says who you are\n",
        "",
    )
    assert here.run("cancel", "qry_late", "--agent", "eve").out.startswith(
        "not owner qry_late: it is for ada to do"
    )
    assert here.json("cancel", "qry_late")[1]["outcome"] == "late"
    assert here.run("reply", "qry_none", "x") == (
        1,
        (
            "unknown qry_none: there is no such question, or none any more;"
            " see 'interlock inbox --kind query'\n"
        ),
        "",
    )


def test_nobody_answers_in_time(here: Here) -> None:
    known(here, "bob")
    done = here.run("query", "bob", "x", "--timeout", "50ms")
    assert (done.status, plainly(done.out)) == (
        1,
        (
            "timed out qry_ID: bob did not answer within 0.1 s;"
            " ask again with a longer --timeout, or with --person\n"
        ),
    )
    assert here.json("query", "bob", "x", "--timeout", "50ms")[1]["outcome"] == "timed_out"


def test_nobody_is_there_to_answer(here: Here) -> None:
    session = here.json("agent", "join", "--agent", "bob")[1]["session"]
    here.run("agent", "leave", "--session", session)
    more = "--hold lets the question wait, --person asks a person\n"
    assert here.run("query", "bob", "x") == (1, f"away bob: bob has no session now; {more}", "")
    assert here.run("query", "?gpu", "x") == (
        1,
        f"away '?gpu': no agent here can do gpu; {more}",
        "",
    )
    held = here.json("query", "bob", "x", "--hold", "--timeout", "50ms")
    assert held[1]["outcome"] == "timed_out"


def test_an_answer_that_is_young_enough_will_do(here: Here) -> None:
    known(here, "bob")
    words = ("query", "bob", "x", "--cached", "1h")
    with interlock.connect(agent="ada") as fleet:
        fleet.messages.query("bob", "x", timeout=0.0, person=True, id="qry_1")
    here.run("reply", "qry_1", "y", "--agent", "bob")
    status, told = here.json(*words)
    assert (status, told["answer"], told["age"] >= 0) == (0, "y", True)
    assert plainly(here.run(*words).out) == "answered qry_1 by bob, N s ago\n  | y\n"


def test_a_person_decides_what_nobody_answers(here: Here) -> None:
    status, handed = here.json("query", "?law", "may we?\nreally?", "--person")
    id_, query = handed["decision"], handed["query"]
    assert (status, handed["outcome"]) == (1, "handed")
    assert here.run("query", "?law", "may we?\nreally?", "--person", "--id", query).out == (
        f"handed {query} to a person, who decides {id_}; the answer will be in your inbox\n"
    )
    assert plainly(here.run("decision", "list").out).splitlines()[1].split() == [
        "dec_ID", "open", "ada", "N", "s", "ago", '"may', 'we?\\nreally?"',
    ]  # fmt: skip
    assert plainly(here.run("decision", "show", id_).out).splitlines() == [
        "decision  dec_ID",
        "state     open",
        "about     query/qry_ID",
        "asked by  ada, N s ago",
        "  | may we?",
        "  | really?",
        "to decide, as another agent than ada: interlock decision resolve dec_ID TEXT --agent NAME",
    ]
    words = ("decision", "resolve", id_, "yes", "--agent", "maria")
    assert here.json(*words) == (
        0,
        {"outcome": "resolved", "decision": id_, "about": f"query/{query}"},
    )
    assert here.run(*words) == (
        1,
        f"already resolved {id_}: maria decided it; see 'interlock decision show {id_}'\n",
        "",
    )
    (told,) = inbox(here, agent="ada")
    assert (told["kind"], told["from"], told["data"]) == ("answer", "maria", "yes")
    assert told["reply_to"] == query
    assert here.json("decision", "list") == (0, {"decisions": [], "unreadable": 0, "count": 0})
    assert here.json("decision", "list", "--all")[1]["decisions"][0]["answer"] == "yes"
    assert plainly(here.run("decision", "show", id_).out).endswith(
        "decided by maria, N s ago\n  | yes\n"
    )
    assert here.run("decision", "show", "dec_9").status == 1
    assert here.json("decision", "resolve", "dec_9", "x")[1] == {
        "outcome": "unknown", "what": "decision", "unknown": ["dec_9"], "decision": "dec_9",
    }  # fmt: skip


def test_no_more_questions_are_open_than_allowed(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(here, "bob")
    monkeypatch.setenv("INTERLOCK_MESSAGE_OPEN_QUERIES", "0")
    assert here.run("query", "bob", "x") == (
        3,
        ("too many: 0 questions are open, and no more are allowed; retry when some are answered\n"),
        "",
    )


def test_an_id_that_was_used_is_no_way_to_ask_something_else_or_longer(here: Here) -> None:
    known(here, "bob")
    here.run("query", "bob", "open?", "--id", "qry_1", "--timeout", "0s", "--agent", "ada")
    other = here.run("query", "bob", "closed?", "--id", "qry_1", "--agent", "ada")
    why = "exists qry_1: that was another question; choose another --id\n"
    assert (other.status, other.out) == (1, why)
    over = here.run("query", "bob", "open?", "--id", "qry_1", "--timeout", "9s", "--agent", "ada")
    assert over.out.endswith("this question has ended: ask under another --id, or without one\n")


def test_what_cannot_be_taken_back_is_told_to_whoever_asked(here: Here) -> None:
    known(here, "bob")
    assert here.run("cancel", "qry_9").out == (
        "unknown qry_9: there is no such question, or none any more;"
        " 'interlock record log --verb query.ask' lists what was asked\n"
    )
    assert "inbox --kind query" in here.run("reply", "qry_9", "x", "--agent", "bob").out
    here.run("query", "bob", "now?", "--hold", "--timeout", "0", "--id", "qry_1")
    assert here.run("cancel", "qry_1").out == "late qry_1: it has expired already\n"
    assert "mail may still help" in here.run("reply", "qry_1", "x", "--agent", "bob").out
