"""Updates of resources: who hears of which change, how often, and through which outages."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faces.shell import PATIENCE, until

import interlock
from interlock.client import Fleet
from interlock.faces.mcp import updates as module
from interlock.faces.mcp.jsonrpc import STATELESS
from interlock.faces.mcp.protocol import ToolAnswer, ToolServer
from interlock.faces.mcp.subscriptions import MOST, Subscriptions
from interlock.faces.mcp.updates import BOARD, INBOX, PRIMER, Listener, ResourceUpdates
from interlock.store import Store
from interlock.stores import open_store

META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS[-1],
    "io.modelcontextprotocol/clientCapabilities": {},
}
OWN = "io.modelcontextprotocol/subscriptionId"


class Heard:
    """Updates as they come."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def tell(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def reach(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, PATIENCE)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with interlock.connect(tmp_path / "store.db", agent="eve") as found:
        yield found


@pytest.fixture
def updates(fleet: Fleet) -> Iterator[ResourceUpdates]:
    made = ResourceUpdates(lambda: fleet.store)
    yield made
    for listener in tuple(made._listeners):
        made.remove(listener)
    until(lambda: not _threads())


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "interlock-updates"]


def _listen(updates: ResourceUpdates, uri: str, agent: str = "ada") -> Heard:
    heard = Heard()
    updates.add(Listener(uri, agent, heard.tell))
    return heard


def test_each_resource_is_told_of_its_own_changes(fleet: Fleet, updates: ResourceUpdates) -> None:
    ada, bob = _listen(updates, INBOX), _listen(updates, INBOX, "bob")
    primer = _listen(updates, PRIMER)
    fleet.tasks.publish("t1")
    fleet.messages.send("bob", "for bob alone", hold=True)
    bob.reach(1)
    fleet.messages.alert("built", "for all")
    ada.reach(1)
    bob.reach(2)
    assert (ada.count, primer.count) == (1, 0)
    board = _listen(updates, BOARD)
    fleet.locks.acquire("merge")
    board.reach(1)


@pytest.mark.parametrize("change", ["publish", "claim", "lock", "status", "leave"])
def test_the_board_changes_with_tasks_locks_and_agents(
    fleet: Fleet, updates: ResourceUpdates, change: str, tmp_path: Path
) -> None:
    fleet.tasks.publish("t1")
    other = interlock.connect(tmp_path / "store.db", agent="bob")
    acts: dict[str, Callable[[], object]] = {
        "publish": lambda: fleet.tasks.publish("t2"),
        "claim": lambda: fleet.tasks.claim("t1"),
        "lock": lambda: fleet.locks.acquire("merge"),
        "status": lambda: fleet.agents.status("busy", doing="t1"),
        "leave": other.close,
    }
    board = _listen(updates, BOARD)
    acts[change]()
    board.reach(1)
    other.close()


def test_changes_that_come_together_are_one_update(fleet: Fleet, updates: ResourceUpdates) -> None:
    board = _listen(updates, BOARD)
    for number in range(200):
        fleet.tasks.publish(f"t{number}")
    fleet.messages.send("ada", "the last", hold=True)
    inbox = _listen(updates, INBOX)
    fleet.messages.send("ada", "one more", hold=True)
    inbox.reach(1)
    assert 1 <= board.count < 30


def test_the_thread_ends_with_the_last_subscription(updates: ResourceUpdates) -> None:
    heard = Heard()
    listeners = [Listener(uri, "ada", heard.tell) for uri in (BOARD, INBOX)]
    for each in listeners:
        updates.add(each)
    assert len(_threads()) == 1
    for each in listeners:
        updates.remove(each)
    until(lambda: not _threads())
    updates.add(listeners[0])
    assert len(_threads()) == 1


def test_a_store_that_was_away_is_followed_again_and_all_are_told(tmp_path: Path) -> None:
    place, away = tmp_path / "store.db", tmp_path / "away"
    with interlock.connect(place, agent="eve") as fleet:
        fleet.tasks.publish("t1")
    kept: list[Store] = []

    def store() -> Store:
        if not kept or kept[-1].missing:
            kept.append(open_store(str(place), create=False))
        return kept[-1]

    updates = ResourceUpdates(store)
    board, inbox = _listen(updates, BOARD), _listen(updates, INBOX)
    away.mkdir()
    names = [name for name in os.listdir(tmp_path) if name.startswith("store.db")]
    for name in names:
        os.rename(tmp_path / name, away / name)
    until(lambda: kept[-1].missing or not _noticed(kept[-1]))
    for name in names:
        os.rename(away / name, tmp_path / name)
    inbox.reach(1)
    before = board.count
    with interlock.connect(place, agent="eve") as fleet:
        fleet.tasks.publish("t2")
        board.reach(before + 1)
    for listener in tuple(updates._listeners):
        updates.remove(listener)
    until(lambda: not _threads())
    for each in kept:
        each.close()


def _noticed(store: Store) -> bool:
    """Look at the store, as any other call of the process does."""
    try:
        store.read("x")
    except interlock.InterlockError:
        return False
    return not store.missing


def test_a_failing_watch_is_opened_again_and_all_are_told(
    fleet: Fleet, updates: ResourceUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN", 0.01)
    board = _listen(updates, BOARD)
    failing, real = [True], ResourceUpdates._now

    def now(self: ResourceUpdates) -> tuple[Listener, ...]:
        if failing[0]:
            raise interlock.StoreTrouble("away")
        return real(self)

    monkeypatch.setattr(ResourceUpdates, "_now", now)
    fleet.tasks.publish("t1")
    until(lambda: updates._after is None)
    failing[0] = False
    board.reach(1)
    fleet.tasks.publish("t2")
    board.reach(2)


# The protocol in front of it.


class Wire:
    """A connection to a server with resources, and what it sent."""

    def __init__(self, updates: ResourceUpdates) -> None:
        self.sent: list[Any] = []
        self._changed = threading.Condition()
        self.server = ToolServer(
            instructions="",
            tools=list,
            has_tool=lambda _: False,
            call=lambda _: ToolAnswer(""),
            start=lambda work: work(),
            reading=lambda *_, **__: None,
            subscriptions=lambda: Subscriptions(updates, lambda: "ada", self._send),
        )

    def _send(self, message: bytes) -> None:
        with self._changed:
            self.sent.append(json.loads(message))
            self._changed.notify_all()

    def ask(self, method: str, params: object = None, id_: object = 1) -> Any:
        """Send a request; the last message that came since."""
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}
        self.server.receive(json.dumps(message).encode(), self._send)
        return self.sent[-1]

    def listen(self, id_: object, *uris: str) -> Any:
        wanted = {"resourceSubscriptions": list(uris), "toolsListChanged": True}
        return self.ask("subscriptions/listen", {"notifications": wanted, "_meta": META}, id_)

    def updated(self, after: int = 0) -> list[Any]:
        """The updates after so many messages; waits for one."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent) > after, PATIENCE)
            return [each["params"] for each in self.sent[after:]]


@pytest.fixture
def wire(updates: ResourceUpdates) -> Wire:
    return Wire(updates)


def test_both_eras_declare_updates(wire: Wire) -> None:
    greeted = wire.ask("initialize", {"protocolVersion": "2025-11-25"})["result"]
    found = wire.ask("server/discover", {"_meta": META})["result"]
    for each in (greeted, found):
        assert each["capabilities"]["resources"] == {"subscribe": True}


def test_a_client_subscribes_and_unsubscribes(fleet: Fleet, wire: Wire) -> None:
    assert wire.ask("resources/subscribe", {"uri": BOARD})["result"] == {}
    assert wire.ask("resources/subscribe", {"uri": BOARD})["result"] == {}
    fleet.tasks.publish("t1")
    assert wire.updated(after=2) == [{"uri": BOARD}], "a second time changes nothing"
    assert wire.ask("resources/unsubscribe", {"uri": BOARD})["result"] == {}
    assert wire.ask("resources/unsubscribe", {"uri": BOARD})["result"] == {}
    assert wire.ask("resources/subscribe", {"uri": INBOX}, id_=5)["result"] == {}
    fleet.tasks.publish("t2")
    fleet.messages.send("ada", "hello", hold=True)
    assert wire.updated(after=6) == [{"uri": INBOX}]


def test_a_listener_is_acknowledged_told_and_answered_at_the_end(fleet: Fleet, wire: Wire) -> None:
    first = wire.listen("one", BOARD, "file:///etc/passwd")
    assert first["method"] == "notifications/subscriptions/acknowledged"
    promised = {"resourceSubscriptions": [BOARD]}
    assert first["params"] == {"notifications": promised, "_meta": {OWN: "one"}}
    assert wire.listen(2)["params"]["notifications"] == {}, "nothing of ours was asked for"
    fleet.tasks.publish("t1")
    assert wire.updated(after=2) == [{"uri": BOARD, "_meta": {OWN: "one"}}]
    wire.server.close()
    ends = {each["id"]: each["result"] for each in wire.sent[-2:]}
    assert ends["one"] == {"resultType": "complete", "_meta": {OWN: "one"}}
    assert set(ends) == {"one", 2}
    assert not wire.server._subscriptions._updates._listeners  # type: ignore[union-attr]


def test_a_cancelled_listener_ends_without_an_answer(wire: Wire, updates: ResourceUpdates) -> None:
    wire.listen("one", BOARD)
    wire.listen(1, INBOX)
    for id_ in (1, "unknown", "one"):
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id_}}
        wire.server.receive(json.dumps(said).encode(), wire._send)
    assert not updates._listeners
    assert len(wire.sent) == 2


def test_listeners_are_bounded_and_their_mistakes_are_told(
    wire: Wire, updates: ResourceUpdates
) -> None:
    for number in range(MOST):
        wire.listen(number, BOARD, INBOX)
    assert wire.listen("more", BOARD)["error"]["code"] == -32000
    assert wire.listen(0, BOARD)["error"]["code"] == -32600
    for wrong in (None, {"resourceSubscriptions": 5}, {"resourceSubscriptions": ["x"] * 101}):
        params = {"notifications": wrong, "_meta": META}
        assert wire.ask("subscriptions/listen", params, "w")["error"]["code"] == -32602
    for uri in (None, 5, "interlock://", ["interlock://board"]):
        wrong_uri = wire.ask("resources/subscribe", {"uri": uri})["error"]
        assert wrong_uri["code"] == -32602
    removed = wire.ask("resources/subscribe", {"uri": BOARD, "_meta": META})["error"]
    assert removed["code"] == -32601, "the stateless era has no such method"
    assert wire.ask("subscriptions/listen", {"notifications": {}})["error"]["code"] == -32601
    batch = [{"jsonrpc": "2.0", "id": 99, "method": "subscriptions/listen"}]
    batch[0]["params"] = {"notifications": {}, "_meta": META}
    wire.server.receive(json.dumps(batch).encode(), wire._send)
    assert wire.sent[-1][0]["error"]["code"] == -32601
    wire.server.close()
    assert not updates._listeners


def test_a_store_that_is_away_is_told_to_the_one_who_subscribes(tmp_path: Path) -> None:
    def missing() -> Store:
        return open_store(str(tmp_path / "none.db"), create=False)

    wire = Wire(ResourceUpdates(missing))
    said = wire.ask("resources/subscribe", {"uri": BOARD})["error"]
    assert said["code"] == -32603
    assert "interlock init" in said["message"]
