"""Decisions: named options, a resolver who is not the asker, and no silent yes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.codec import encode
from interlock.core.decision import Write
from interlock.nouns.messages.decision import (
    AlreadyResolved,
    DecisionOption,
    DecisionView,
    HumanDecision,
    NoSuchOption,
    OptionView,
    OwnDecision,
    Resolved,
    UnknownDecision,
)
from interlock.nouns.messages.decision_rules import chosen, close, expire, opening, resolve
from interlock.runtime.text import render
from interlock.store import Put, Txn
from interlock.testing.testbed import Testbed

NOW = 1_700_000_000.0
WAIT = DecisionOption(name="wait", text="leave it as it is", acts=False)
DELETE = DecisionOption(name="delete", value=Raw(b"[1,2]"))
FREE = HumanDecision(id="dec_1", about="query/qry_1", agent="ada", question=Raw(b'"?"'), at=NOW)
CHOICE = replace(FREE, options=(WAIT, DELETE), default="wait", deadline=NOW + 60)


def said(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def after(decision: HumanDecision, answer: object, by: str = "maria") -> HumanDecision:
    """The decision that is stored after it was made."""
    made = resolve(decision, decision.id, by, said(answer), NOW + 1)
    assert made.outcome == Resolved(decision="dec_1", about="query/qry_1")
    stored = made.puts[0].value
    assert isinstance(stored, HumanDecision)
    return stored


def test_any_answer_decides_a_question_without_options() -> None:
    stored = after(FREE, {"api": 2})
    assert (stored.state, stored.by, bytes(stored.answer)) == ("resolved", "maria", b'{"api":2}')
    assert chosen(stored) is None


def test_an_answer_to_options_names_one_of_them_and_may_have_a_comment() -> None:
    assert chosen(after(CHOICE, "delete")) == DELETE
    assert chosen(after(CHOICE, {"option": "wait", "comment": "it is Friday"})) == WAIT


@pytest.mark.parametrize("answer", ["yes", "DELETE", None, 1, [], {}, {"comment": "delete"}])
def test_an_answer_that_is_no_option_decides_nothing(answer: object) -> None:
    refused = resolve(CHOICE, "dec_1", "maria", said(answer), NOW)
    assert refused.outcome == NoSuchOption(decision="dec_1", options=("wait", "delete"))
    assert not refused.changes


@pytest.mark.parametrize("decision", [FREE, CHOICE])
def test_the_asker_does_not_decide(decision: HumanDecision) -> None:
    refused = resolve(decision, "dec_1", "ada", said("delete"), NOW)
    assert refused.outcome == OwnDecision(decision="dec_1", agent="ada")
    assert not refused.changes


def test_a_decision_is_made_once() -> None:
    again = resolve(after(FREE, 1), "dec_1", "eve", said(2), NOW)
    assert again.outcome == AlreadyResolved(decision="dec_1", by="maria")
    unknown = UnknownDecision(unknown=("dec_2",), decision="dec_2")
    assert resolve(None, "dec_2", "eve", said(2), NOW).outcome == unknown


# The deadline.


def test_after_the_deadline_the_default_counts_and_no_person_is_named() -> None:
    ended = expire(CHOICE, NOW + 61, alive=False)
    stored = ended.puts[0].value
    assert isinstance(stored, HumanDecision)
    assert (stored.state, stored.by, stored.resolved) == ("expired", "", NOW + 61)
    assert chosen(stored) == WAIT
    assert ended.ends
    late = resolve(stored, "dec_1", "maria", said("delete"), NOW + 62)
    assert late.outcome == AlreadyResolved(decision="dec_1", by="")


def test_without_a_default_a_decision_stays_open_after_its_deadline() -> None:
    open_ = replace(CHOICE, default="")
    assert not expire(open_, NOW + 9999, alive=False).changes
    assert chosen(after(open_, "delete")) == DELETE


def test_a_clock_that_runs_ahead_ends_no_decision() -> None:
    assert not expire(CHOICE, NOW + 9999, alive=True).changes


def test_a_person_still_decides_after_the_deadline_if_the_default_is_not_committed() -> None:
    made = resolve(CHOICE, "dec_1", "maria", said("delete"), NOW + 9999)
    assert made.outcome == Resolved(decision="dec_1", about="query/qry_1")
    assert made.deletes == (keys.live("dec_1"),)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"default": "delete"}, "does nothing"),
        ({"default": "other"}, "does nothing"),
        ({"deadline": None}, "needs a deadline"),
        ({"options": (WAIT, WAIT)}, "different names"),
        ({"options": (WAIT, replace(DELETE, name=""))}, "different names"),
    ],
)
def test_a_decision_with_a_default_that_acts_cannot_be_made(
    change: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        HumanDecision(**{**msgspec.structs.asdict(CHOICE), **change})


def test_a_stored_decision_whose_default_would_act_does_not_decode() -> None:
    data = msgspec.json.encode(CHOICE).replace(b'"default":"wait"', b'"default":"delete"')
    with pytest.raises(msgspec.ValidationError, match="does nothing"):
        msgspec.json.decode(data, type=HumanDecision)
    assert msgspec.json.decode(msgspec.json.encode(CHOICE), type=HumanDecision) == CHOICE


@given(
    acts=st.lists(st.booleans(), min_size=1, max_size=4),
    default=st.integers(0, 3),
    alive=st.booleans(),
)
def test_no_time_makes_a_decision_that_acts(acts: list[bool], default: int, alive: bool) -> None:
    options = tuple(DecisionOption(name=f"o{n}", acts=each) for n, each in enumerate(acts))
    try:
        decision = replace(CHOICE, options=options, default=f"o{default}")
    except ValueError:
        assert default >= len(acts) or acts[default]
        return
    ended = expire(decision, NOW + 999, alive=alive)
    if ended.changes:
        stored = ended.puts[0].value
        assert isinstance(stored, HumanDecision)
        option = chosen(stored)
        assert option is not None
        assert not option.acts


def test_the_engine_measures_the_deadline() -> None:
    stored, measured = opening(CHOICE, NOW)
    assert stored == Write(keys.decision("dec_1"), CHOICE)
    assert measured == Write(keys.live("dec_1"), {"for": "query/qry_1"}, 60.0)
    assert opening(CHOICE, NOW + 100, least=0.5)[1].ttl == 0.5
    assert opening(FREE, NOW) == (Write(keys.decision("dec_1"), FREE),)


def test_the_recipient_of_a_question_may_still_answer_it_after_a_person_was_asked() -> None:
    done = close(FREE, "ada", said("v2"), NOW)
    assert done.outcome == Resolved(decision="dec_1", about="query/qry_1")


# Through the store.


def test_the_asker_is_refused_and_another_agent_decides() -> None:
    stage = Testbed()
    ada, maria = stage.client("ada"), stage.client("maria")
    ada.run(ada.messages.query("bob", "may I?", person=True, hold=True, timeout=0))
    (asked,) = ada.run(ada.messages.decisions())
    refused = ada.run(ada.messages.resolve(asked.decision, "yes"))
    assert refused == OwnDecision(decision=asked.decision, agent="ada")
    assert isinstance(maria.run(maria.messages.resolve(asked.decision, "yes")), Resolved)


def test_a_person_sees_the_options_with_their_values_and_what_the_deadline_does() -> None:
    stage = Testbed()
    maria = stage.client("maria")
    puts = [Put(each.key, encode(each.value), each.ttl) for each in opening(CHOICE, NOW)]
    stage.store.commit(Txn(id="txn_1", puts=tuple(puts), quiet=True))
    shown = maria.run(maria.messages.decision("dec_1"))
    assert isinstance(shown, DecisionView)
    wait = OptionView(option="wait", text="leave it as it is", acts=False)
    assert shown.options == (wait, OptionView(option="delete", value=[1, 2]))
    text = render(shown, colour=False)
    assert "then wait" in text
    assert "option wait: 'leave it as it is'" in text
    assert "interlock decision resolve dec_1 wait --agent NAME" in text
    assert isinstance(maria.run(maria.messages.resolve("dec_1", "delete")), Resolved)
    assert stage.store.read(keys.live("dec_1"))[keys.live("dec_1")] is None
