"""What ``connect`` takes for a store, and what it says of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import aio
from interlock.errors import BadInput, Lapsed, StoreMissing


def connect_async(*args: Any, **options: Any) -> None:
    async def connecting() -> None:
        async with await aio.connect(*args, **options):
            pass

    asyncio.run(connecting())


def connect(*args: Any, **options: Any) -> None:
    interlock.connect(*args, **options).close()


both = pytest.mark.parametrize("connecting", [connect, connect_async])


@both
def test_a_mere_name_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connecting: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"mean connect\(agent='ada'\).* write \./ada$"):
        connecting("ada")
    assert list(tmp_path.iterdir()) == []
    connecting("./ada")
    connecting("ada", agent="bob")  # there is such a file now
    connecting("memory:")


@both
def test_a_path_is_a_place_too(tmp_path: Path, connecting: Callable[..., None]) -> None:
    connecting(tmp_path / "store.db")
    assert (tmp_path / "store.db").exists()


@both
def test_where_there_is_no_store_it_says_how_to_name_one_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connecting: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("INTERLOCK_STORE", "IF_ETCD_HOST", "IF_ETCD_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreMissing, match=r"or name one: connect\(URL\), --store URL$"):
        connecting(agent="ada")
    monkeypatch.setenv("INTERLOCK_STORE", str(tmp_path / "none.db"))
    with pytest.raises(StoreMissing, match=r"or connect\(URL\) in Python,"):
        connecting(agent="ada")


@both
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_the_place_of_an_open_store_says_where_it_belongs(
    tmp_path: Path, kind: type[Any], connecting: Callable[..., None]
) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(BadInput) as raised:
        connecting(agent="ada", store=kind(path))
    assert str(raised.value) == (
        f"store= takes an open store; a path or URL comes first: connect({str(path)!r})"
    )


@both
def test_a_client_is_no_store_and_two_stores_are_one_too_many(
    tmp_path: Path, connecting: Callable[..., None]
) -> None:
    with interlock.connect(tmp_path / "a.db", agent="bob") as bob:
        with pytest.raises(BadInput, match=r"this is a client; give its \.store"):
            connecting(agent="ada", store=bob)
        with pytest.raises(BadInput, match="give one of them"):
            connecting(tmp_path / "b.db", agent="ada", store=bob.store)
    assert not (tmp_path / "b.db").exists()


@pytest.fixture
def shell_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[interlock.Fleet]:
    """A session of ada that somebody else began, named by the environment."""
    with interlock.connect(tmp_path / "store.db", agent="ada") as ada:
        monkeypatch.setenv("INTERLOCK_STORE", str(tmp_path / "store.db"))
        monkeypatch.setenv("INTERLOCK_AGENT", "ada")
        monkeypatch.setenv("INTERLOCK_SESSION", ada.session)
        yield ada


def test_the_environment_names_who_connects(
    shell_session: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interlock.connect() as inside:
        assert inside.session == shell_session.session
        assert inside.locks.acquire("m").holder == "ada"  # type: ignore[union-attr]
    assert shell_session.locks.show("m").session == shell_session.session, "it did not leave"
    monkeypatch.delenv("INTERLOCK_SESSION")
    with interlock.connect() as own:
        assert own.session != shell_session.session
        assert [each.agent for each in own.agents.show(own.session)] == ["ada"]


def test_the_environment_names_who_connects_in_an_event_loop(
    shell_session: interlock.Fleet,
) -> None:
    async def inside() -> str:
        async with await aio.connect() as fleet:
            return fleet.session

    assert asyncio.run(inside()) == shell_session.session
    assert len(shell_session.agents.show("ada")) == 1


def test_two_programs_of_one_session_do_not_hold_one_lock(shell_session: interlock.Fleet) -> None:
    with interlock.connect() as one, interlock.connect() as two, one.lock("m"):
        assert two.session == one.session == shell_session.session
        assert isinstance(two.locks.acquire("m"), interlock.Busy)


def test_an_agent_that_is_named_has_a_session_of_its_own(shell_session: interlock.Fleet) -> None:
    for name in ("ada", "bob"):
        with interlock.connect(agent=name) as fleet:
            assert fleet.session != shell_session.session
            assert [each.agent for each in fleet.agents.show(fleet.session)] == [name]


@both
def test_a_name_that_contradicts_the_session_is_refused(
    shell_session: interlock.Fleet,
    monkeypatch: pytest.MonkeyPatch,
    connecting: Callable[..., None],
) -> None:
    monkeypatch.setenv("INTERLOCK_AGENT", "bob")
    with pytest.raises(BadInput, match="belongs to ada, not to bob; to act under that name, begin"):
        connecting()
    with pytest.raises(BadInput, match="belongs to ada, not to cleo"):
        connecting(agent="cleo", session=shell_session.session)


def test_inside_a_session_that_is_over_one_may_look_but_not_act(
    shell_session: interlock.Fleet,
) -> None:
    shell_session.close()
    with interlock.connect() as fleet:
        assert fleet.locks.list() == ()
        with pytest.raises(Lapsed, match="agent join"):
            fleet.locks.acquire("m")


def test_a_session_of_the_environment_lives_while_somebody_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_STORE", str(tmp_path / "store.db"))
    with interlock.connect(tmp_path / "store.db", agent="ada", join=False) as shell:
        monkeypatch.setenv("INTERLOCK_SESSION", shell.agents.join(ttl=0.6).session)
        with interlock.connect() as fleet:
            lease = fleet.context.session_lease
            assert lease is not None
            until = lease.ends
            while lease.ends <= until:
                assert lease.alive()
            with fleet.lock("m") as held:
                assert not held.lost
