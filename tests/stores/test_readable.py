"""What a task is and how it stands can be read with the tools of the engines, as plain JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.stores.tampering import EtcdHand, RedisHand

import interlock
from interlock.core import keys
from interlock.store import Check, Committed, Conflict, Put, Txn
from interlock.stores import open_store
from interlock.stores.etcd import EtcdStore
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import TXN
from interlock.stores.etcd.encoding import is_plain, plain_bounds, wrapped
from interlock.stores.network import REPLY, stamped, unstamped
from interlock.stores.redis import RedisStore
from interlock.testing.servers.redis import RedisServer

network = pytest.mark.parametrize("url", ["redis", "etcd"], indirect=True)
TASK = ("status", "owner", "data")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def asked(*words: str) -> str:
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no {words[0]} here")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def busy_task(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("t1", {"file": "größe"}, priority=2)
        fleet.tasks.claim("t1", ttl=900)


def judged(shown: dict[str, dict[str, Any]]) -> None:
    assert shown["status"]["state"] == "running"
    assert shown["owner"]["agent"] == "ada"
    assert (shown["data"]["priority"], shown["data"]["data"]) == (2, {"file": "größe"})


def test_redis_cli_shows_a_task_as_json(redis_url: str, redis_server: RedisServer) -> None:
    busy_task(redis_url)
    with closing(open_store(redis_url)) as store:
        assert isinstance(store, RedisStore)
        port, items = redis_server.endpoint.rpartition(":")[2], bytes(store.keys["items"]).decode()
    said = {
        part: json.loads(asked("redis-cli", "-p", port, "--raw", "HGET", items, f"tasks/t1/{part}"))
        for part in TASK
    }
    judged(said)


def test_etcdctl_shows_a_task_as_json(etcd_url: str) -> None:
    busy_task(etcd_url)
    place, _, namespace = etcd_url.removeprefix("etcd://").partition("/")
    get = ("etcdctl", f"--endpoints={place}", "get", "--print-value-only")
    judged({part: json.loads(asked(*get, f"{namespace}/tasks/t1/{part}")) for part in TASK})


@network
def test_a_store_of_the_first_format_is_read_and_goes_on(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("t1", {"x": 1})
        fleet.tasks.publish("t2")
        made_old(fleet.store)
    with interlock.connect(url, agent="bob") as fleet:
        claim = fleet.tasks.next()
        assert isinstance(claim, interlock.Claimed)
        assert (claim.task, claim.data) == ("t1", {"x": 1})
        assert isinstance(fleet.tasks.complete("t1"), interlock.Completed)
        assert fleet.tasks.claim("t2")
        assert fleet.store.info()["format"] == 2
        if isinstance(fleet.store, RedisStore):  # etcd numbers anew what we put by hand
            assert fleet.record.verify().exit_status == 0


def made_old(store: object) -> None:
    """Let a store be as the version before wrote it."""
    assert isinstance(store, RedisStore | EtcdStore)
    for key in [f"tasks/{task}/{part}" for task in ("t1", "t2") for part in ("status", "data")]:
        item = store.read(key)[key]
        assert item is not None
        if isinstance(store, RedisStore):
            RedisHand(store).put(item)
        else:
            EtcdHand(store).put(item)
    if isinstance(store, RedisStore):
        RedisHand(store)._ask("HSET", store.keys["meta"], "format", "1")
    else:
        put = rpc.PutRequest(
            key=store.namespace.key("meta/format"), value=wrapped(b"1", "", "", quiet=True)
        )
        EtcdHand(store)._do(rpc.RequestOp(put=put))


VALUES = (
    b"{}",
    b'{"a":1}',
    b'{"a":"\\"stamp\\":\\"1 1 x y\\"}"}',
    b'{"stamp":"1 1 txn_x abc"}',
    b'{"a":{"stamp":"1 1 txn_x abc"}}',
    b"[1]",
    b"null",
    b"{not json",
)


payloads = st.sampled_from(VALUES) | st.builds(
    lambda value: json.dumps(value, separators=(",", ":")).encode(),
    st.dictionaries(
        st.sampled_from(["a", "b", "stamp"]), st.integers(0, 1) | st.sampled_from(["", "txn_a 0f"])
    ),
)


@pytest.mark.parametrize("value", VALUES[:5])
def test_a_stamp_comes_off_as_it_was_put_on(value: bytes) -> None:
    kept = stamped(value, b"12 7 txn_a 0f")
    assert unstamped(kept) == (value, b"12 7 txn_a 0f")
    assert json.loads(kept)["stamp"] == "12 7 txn_a 0f"


@network
@pytest.mark.parametrize("value", VALUES)
def test_whatever_stands_under_a_task_is_checked_and_read_as_it_was_written(
    url: str, value: bytes
) -> None:
    key = keys.status("t1")
    with closing(open_store(url)) as store:
        made = commit(store.commit, "txn_a", Put(key, value))
        item = store.read(key)[key]
        assert item is not None
        assert (item.value, item.revision, item.created) == (value, made, made)
        assert (item.entry, item.hash) == ("txn_a", "hash_a")
        again = commit(store.commit, "txn_b", Put(key, value), Check(key, "has", value=value))
        last = commit(store.commit, "txn_c", Put(key, b"{}"), Check(key, "at", revision=again))
        item = store.read(key)[key]
        assert item is not None
        assert (item.value, item.revision, item.created) == (b"{}", last, made)


@network
def test_a_check_of_a_payload_holds_for_that_payload_alone(url: str) -> None:
    """Also if it is long, and if a member of it has the name or the form of the stamp."""
    long, inner = b"x" * 600, b'{"stamp":"1 1 txn_x abc"}'
    values = (
        *VALUES,
        b'{"a":"%b"}' % long,
        b'{"a":"%b","stamp":"1 1 txn_x abc"}' % long,
        b'{"stamp":"1 1 txn_x abc","a":"%b"}' % long,
        b'{"a":[%b]}' % b",".join([inner] * 30),
        b'{"a":[%b],"b":"%b"}' % (inner, b"x" * 400),
    )
    key = keys.status("t1")
    with closing(open_store(url)) as store:
        for turn, value in enumerate(values):
            made = commit(store.commit, f"txn_{turn}", Put(key, value))
            item = store.read(key)[key]
            assert item is not None
            assert (item.value, item.revision) == (value, made)
            for number, other in enumerate(values):
                mark = Put(f"tasks/{number}/status", b"{}")
                check = Check(key, "has", value=other)
                id_ = f"txn_{turn}.{number}"
                answer = store.commit(Txn(id=id_, entry=b"{}", checks=(check,), puts=(mark,)))
                assert isinstance(answer, Committed) == (value == other), (value, other)


@given(value=payloads, other=payloads)
def test_an_item_is_within_the_bounds_of_its_own_payload_alone(value: bytes, other: bytes) -> None:
    assume(is_plain(value))
    first, end = plain_bounds(value)
    for quiet, created in ((False, 0), (True, 0), (False, 7)):
        kept = wrapped(other, "txn_a", "0f", quiet=quiet, plain=True, created=created)
        assert (first < kept < end) == (value == other)


def test_a_payload_is_compared_by_etcd_without_a_read(etcd_url: str) -> None:
    status, mailbox = keys.status("t1"), keys.mailbox("ada")
    with closing(open_store(etcd_url)) as store:
        assert isinstance(store, EtcdStore)
        made = commit(store.commit, "txn_a", Put(status, b'{"state":"ready"}'))
        commit(store.commit, "txn_b", Put(mailbox, b"true"))
        known = Check(mailbox, "has", value=b"true")
        commit(store.commit, "txn_c", Put("x", b""), known)  # reads it once
        with requests_of(store) as sent:
            ready = Check(status, "has", value=b'{"state":"ready"}')
            commit(store.commit, "txn_d", Put("x", b""), ready, known)
            assert sent == [TXN]
            for value in (b'{"state":"read"}', b"{}", b'{"state":"ready","by":"ada"}'):
                wrong = Txn(id="txn_e", checks=(Check(status, "has", value=value),))
                answer = store.commit(wrong)
                assert isinstance(answer, Conflict)
                item = answer.items[status]
                assert item is not None
                assert item.revision == made


def test_a_payload_that_another_client_wrote_again_is_no_conflict(etcd_url: str) -> None:
    key = keys.mailbox("ada")
    has = Check(key, "has", value=b"true")
    with closing(open_store(etcd_url)) as store, closing(open_store(etcd_url)) as other:
        commit(store.commit, "txn_a", Put(key, b"true"))
        commit(store.commit, "txn_b", Put("x", b""), has)
        commit(other.commit, "txn_c", Put(key, b"true"))
        commit(store.commit, "txn_d", Put("x", b""), has)
        commit(other.commit, "txn_e", Put(key, b"false"))
        assert isinstance(store.commit(Txn(id="txn_f", checks=(has,))), Conflict)


@contextmanager
def requests_of(store: EtcdStore) -> Iterator[list[str]]:
    """The methods that a store calls."""
    sent: list[str] = []
    call = store.transport.call

    def noted(request: Any, within: float = REPLY) -> Any:
        sent.append(request[0])
        return call(request, within)

    store.transport.call = noted  # type: ignore[method-assign]
    yield sent


def commit(committing: Callable[[Txn], object], id_: str, put: Put, *checks: Check) -> int:
    txn = Txn(id=id_, entry=b"{}", hash=f"hash_{id_[-1]}", checks=checks, puts=(put,))
    answer = committing(txn)
    assert isinstance(answer, Committed), answer
    return answer.revision
