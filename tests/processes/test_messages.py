"""Messages between real processes: event loops with several agents, and processes killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import checks
from tests.processes.helpers import Process, ProcessGroup

import interlock
from interlock.nouns.messages.message import Sent

KINDS = ("alert", "share", "query")
RATE = 20
"""Messages a second that are let; a slow machine floods with more than that, too."""


@pytest.fixture
def posters() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.message_programs") as everybody:
        yield everybody


def talk(url: str, posters: ProcessGroup, many: int, processes: int, rounds: int) -> None:
    """Agents in several processes alert, share with and ask each other: all arrives once."""
    names = [f"a{number}" for number in range(many)]
    crew = [
        posters.start("loops", url, ",".join(names[place::processes]), rounds, *names)
        for place in range(processes)
    ]
    for actor in crew:
        assert actor.read_line() == "ready"
    for actor in crew:
        actor.write_line()
    heard: dict[str, list[list[str]]] = {}
    for actor in crew:
        for line in actor.remaining_lines(100):
            name, *words = line.split()
            heard[name] = [word.split(",") for word in words]
    for place, name in enumerate(names):
        all_came(heard[name], names, names[place - 1], rounds)
        if not url.startswith("etcd"):  # there each channel is in order by itself
            in_order(heard[name], names[place - 1], rounds)
    checks.sound(url, heads=8)


def all_came(heard: list[list[str]], names: list[str], before: str, rounds: int) -> None:
    """The alerts of all agents, and the shares of the one before, each once and in order."""
    due = [(each, "alert") for each in names] + [(before, "share"), (before, "query")]
    came: dict[tuple[str, str], list[int]] = {channel: [] for channel in due}
    for sender, kind, number in heard:
        came[sender, kind].append(int(number))
    assert all(numbers == list(range(rounds)) for numbers in came.values()), came


def in_order(heard: list[list[str]], before: str, rounds: int) -> None:
    """What one sender did is seen in the order in which it did it."""
    seen = [(int(number), kind) for sender, kind, number in heard if sender == before]
    assert seen == [(number, kind) for number in range(rounds) for kind in KINDS]


def test_three_loops_tell_share_and_ask_in_a_circle(url: str, posters: ProcessGroup) -> None:
    talk(url, posters, many=3, processes=3, rounds=5)


def test_twenty_agents_in_eight_processes_lose_nothing(path: str, posters: ProcessGroup) -> None:
    talk(path, posters, many=20, processes=8, rounds=2)


@pytest.mark.proof
def test_fifty_agents_in_eight_processes_lose_nothing(path: str, posters: ProcessGroup) -> None:
    talk(path, posters, many=50, processes=8, rounds=2)


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_what_a_handler_came_back_from_never_comes_again(
    url: str, posters: ProcessGroup, how: str
) -> None:
    """Killed while the next message is handled, which counts its deliveries."""
    with interlock.connect(url, agent="ada") as ada:
        for number in range(4):
            ada.messages.send("bob", number, hold=True)
        for last, due in ((0, ["0 1"]), (2, ["0 2", "1 1", "2 1"]), (2, ["2 2"])):
            actor = posters.start("handle", url, how, last)
            assert [actor.read_line() for _ in due] == due
            actor.died()
        assert posters.start("handle", url, how, -1).remaining_lines() == ["2 3", "3 1"]
        with interlock.connect(url, agent="bob", join=False) as bob:
            assert bob.messages.inbox().messages == ()


def drunk(url: str, book: Path, many: int) -> int:
    """Each sender's numbers came in order, all of them; how many messages came, each once counted.

    On etcd what is for all and what is for one are each in order by themselves.
    """
    lines = [line.split() for line in book.read_text().splitlines()]
    first = dict.fromkeys((sender, id_, int(number)) for sender, id_, number in lines)
    for each in {sender for sender, _, _ in first}:
        numbers = [number for sender, _, number in first if sender == each]
        if url.startswith("etcd"):
            numbers = sorted(numbers, key=lambda number: number % 3 == 1)
            assert numbers == sorted(range(many), key=lambda number: number % 3 == 1)
        else:
            assert numbers == list(range(many))
    return len(first)


def subscribed(url: str, pairs: list[str]) -> None:
    """The receiver gets the alerts of the sender from the first one on."""
    for pair in pairs:
        with interlock.connect(url, agent=f"for-{pair}", ttl=30) as fleet:
            for sender in pair.split("."):
                fleet.messages.subscribe(sender)


@pytest.mark.proof_on("etcd")
def test_whoever_is_killed_between_any_two_steps_loses_and_doubles_nothing(
    url: str, posters: ProcessGroup, tmp_path: Path
) -> None:
    """Senders and receivers are struck at the same write, each just before it or just after."""
    points = [(write, when) for write in range(1, 4) for when in ("before", "after")]
    if "://" in url:
        points = [(1, "after"), (2, "before"), (3, "after")]
    pairs = [f"s{number}" for number in range(len(points))]
    subscribed(url, pairs)
    crew = []
    for pair, (write, when) in zip(pairs, points, strict=True):
        book = tmp_path / pair
        crew += [
            posters.start("deadly", "pour", url, write, when, pair, f"for-{pair}", 6),
            posters.start("deadly", "drink", url, write, when, f"for-{pair}", book, 6),
        ]
    for actor in crew:
        actor.finished()
    heirs = [posters.start("pour", url, pair, f"for-{pair}", 6) for pair in pairs]
    heirs += [posters.start("drink", url, f"for-{pair}", tmp_path / pair, 6) for pair in pairs]
    for actor in heirs:
        actor.remaining_lines()
    for pair in pairs:
        assert drunk(url, tmp_path / pair, 6) == 6
    checks.sound(url, heads=8)


def heard(actor: Process, many: int) -> None:
    """Let it run until it printed this many lines."""
    for _ in range(many):
        actor.read_line()
        actor.write_line()


@pytest.mark.proof_on("etcd")
def test_kills_at_random_moments_lose_and_double_nothing(
    url: str, posters: ProcessGroup, tmp_path: Path
) -> None:
    """The sender, the receiver, and both, again and again."""
    dice, many, book = random.Random(7), 40, tmp_path / "book"
    subscribed(url, ["ada.bob"])
    pour = {name: posters.start("pour", url, name, "for-ada.bob", many) for name in ("ada", "bob")}
    drink = posters.start("drink", url, "for-ada.bob", book, 2 * many, "paced")
    for kills in ("sender", "receiver", "both", "receiver", "both"):
        name = dice.choice(["ada", "bob"])
        heard(drink, dice.randint(1, 12))
        if kills != "receiver":
            pour[name].kill()
            pour[name] = posters.start("pour", url, name, "for-ada.bob", many)
        if kills != "sender":
            drink.kill()
            drink = posters.start("drink", url, "for-ada.bob", book, 2 * many, "paced")
    for actor in (*pour.values(), drink):
        actor.remaining_lines()
    assert drunk(url, book, many) == 2 * many
    checks.sound(url, heads=8)


def test_an_answerer_that_is_killed_with_a_question_in_hand_answers_when_it_is_back(
    url: str, posters: ProcessGroup
) -> None:
    asker = posters.start("ask", url, "ada", "bob", "qry_1")
    first = posters.start("answer", url, "bob")
    assert first.read_line() == "qry_1 why?"
    first.kill()
    second = posters.start("answer", url, "bob")
    assert second.read_line() == "qry_1 why?"
    second.write_line()
    assert asker.read_line() == "QueryAnswered because"
    assert second.remaining_lines() == ["replied"]
    asker.finish()
    checks.sound(url, heads=8)


def test_an_asker_that_is_killed_has_the_answer_when_it_asks_again(
    url: str, posters: ProcessGroup
) -> None:
    first = posters.start("ask", url, "ada", "bob", "qry_1")
    answerer = posters.start("answer", url, "bob")
    assert answerer.read_line() == "qry_1 why?"
    first.kill()
    again = posters.start("ask", url, "ada", "bob", "qry_1")
    answerer.write_line()
    assert answerer.remaining_lines() == ["replied"]
    assert again.read_line() == "QueryAnswered because"
    later = posters.start("ask", url, "ada", "bob", "qry_1")
    assert later.read_line() == "QueryAnswered because"
    for actor in (again, later):
        actor.finish()
    checks.sound(url, heads=8)


def test_a_flood_is_held_back_and_harms_nobody_else(url: str, posters: ProcessGroup) -> None:
    began = time.monotonic()
    with interlock.connect(url, agent="ada", ttl=60) as fleet:
        floods = [posters.start("flood", url, "spam", "ada", RATE) for _ in range(2)]
        for actor in floods:
            assert actor.read_line() == "flooding"
        for number in range(30):
            assert isinstance(fleet.messages.share("ada", "own", number), Sent)
        own = []
        for message in fleet.messages.recv():
            own += [message.data] if message.type == "own" else []
            if len(own) == 30:
                break
        for actor in floods:
            actor.write_line()
        let, refused = zip(*[map(int, actor.read_line().split()) for actor in floods], strict=True)
        for actor in floods:
            actor.finish()
        assert own == list(range(30))
        assert sum(refused) > 0
        seconds = int(time.monotonic() - began) + 2
        assert sum(let) <= RATE * seconds, "of all processes together, this many in any second"


def test_a_message_that_was_sent_is_read_by_the_next_process_of_its_reader(
    url: str, posters: ProcessGroup, tmp_path: Path
) -> None:
    """The reader was never there while it was sent."""
    subscribed(url, ["ada"])
    posters.start("pour", url, "ada", "for-ada", 3).remaining_lines()
    posters.start("drink", url, "for-ada", tmp_path / "book", 3).remaining_lines()
    assert drunk(url, tmp_path / "book", 3) == 3
    with interlock.connect(url, agent="for-ada", ttl=30) as fleet:
        assert not fleet.messages.inbox().messages


def test_two_who_ask_each_other_are_told_that_it_would_never_end(
    url: str, posters: ProcessGroup
) -> None:
    """One of them at once; it gives in, and the other has its answer."""
    crew = [
        posters.start("ask_in_a_cycle", url, *names) for names in (("ada", "bob"), ("bob", "ada"))
    ]
    for actor in crew:
        assert actor.read_line() == "ready"
    for actor in crew:
        actor.write_line()
    assert sorted(actor.read_line() for actor in crew) == ["QueryAnswered", "QueryDeadlock"]
    for actor in crew:
        actor.finish()
    checks.sound(url, heads=8)
