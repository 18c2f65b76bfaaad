"""What ``connect`` takes for a store, and what it says of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import aio
from interlock.errors import BadInput, StoreMissing


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
    with pytest.raises(StoreMissing, match=r"or connect\(URL\), or name another$"):
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
