"""Signed entries: which key wrote what, and what every change of them looks like."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.nouns.record.histories import History, judged, places, words
from tests.nouns.record.records import agree, busy, checker, entries, seal

import interlock
from interlock import aio, check_record, guard
from interlock.core import codec, signing
from interlock.core.entry import Entry, Signature, decode, sign
from interlock.core.keys import STORE_ID
from interlock.core.signing import KeySigner
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.fleet.moving import StoreCopy
from interlock.nouns.swarms import key_files
from interlock.store import Item, MovableStore
from interlock.stores import open_store

DATA = Path(__file__).parents[2] / "data"
OPS, EVE = (
    KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in (1, 2)
)
OK = ("ok", "ok", "unproven")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.delenv("INTERLOCK_KEY", raising=False)
    return tmp_path / "keys"


# ---- clients ------------------------------------------------------------------------------------


def test_on_every_store_the_record_says_who_signed_and_what_is_not_signed(
    url: str, tmp_path: Path
) -> None:
    with (
        interlock.connect(url, agent="ada", key=OPS) as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        for each in (ada, bob):
            busy(each)
        found = agree(ada, tmp_path)
        assert words(found) == OK
        [signed] = found.signed
        assert (signed.key, signed.agents) == (OPS.fingerprint, ("ada",))
        assert found.unsigned is not None
        assert found.unsigned.agents == ("bob",)
        assert signed.entries + found.unsigned.entries == found.entries
        last = decode(entries(ada)[0].value)
        assert last.signed is not None
        assert last.signed.key == signing.to_base64(OPS.public_key)
        assert found.store
        item = ada.store.read(STORE_ID)[STORE_ID]
        assert item is not None
        assert found.store == last.store == json.loads(item.value)
        assert {decode(each.value).store for each in entries(bob)} == {"", found.store}


def test_many_commits_under_way_at_once_are_all_signed(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")

    async def work() -> None:
        async with await aio.connect(url, agent="ada", key=OPS) as ada:
            await asyncio.gather(*(ada.locks.acquire(f"l{n}", ttl=60) for n in range(50)))
            found = await ada.record.verify()
            assert words(found) == OK
            assert found.unsigned is None
            assert found.signed[0].entries == found.entries

    asyncio.run(work())


def test_sealed_entries_keep_their_signatures(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada", key=OPS) as ada:
        busy(ada)
        seal(ada, 5)
        ada.store.trim(5)
        found = agree(ada, tmp_path)
        assert words(found) == OK
        assert (found.sealed, found.unsigned) == (5, None)


def test_without_a_key_no_entry_has_the_field(tmp_path: Path) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as ada:
        busy(ada)
        assert not any(b"signed" in item.value for item in entries(ada))
        found = agree(ada, tmp_path)
        assert found.signed == ()


def test_a_key_is_named_or_found_in_the_environment(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = key_files.create("ops")
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada", key="ops") as ada:
        assert [each.key for each in ada.record.verify().signed] == [made.fingerprint]
    with interlock.connect(url, agent="ada", key=made.path) as ada:
        assert [each.key for each in ada.record.verify().signed] == [made.fingerprint]
    monkeypatch.setenv("INTERLOCK_KEY", "ops")
    with interlock.connect(url, agent="bob") as bob:
        found = bob.record.verify()
        assert found.unsigned is None
        assert [each.agents for each in found.signed] == [("ada", "bob")]


def test_a_key_that_does_not_exist_is_refused_at_once(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="interlock key new ops"):
        interlock.connect(str(tmp_path / "store.db"), agent="ada", key="ops")
    with interlock.connect(str(tmp_path / "store.db")) as fleet:
        assert entries(fleet) == ()


def test_a_key_of_the_environment_is_loaded_when_something_is_written(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada") as ada:
        busy(ada)
    monkeypatch.setenv("INTERLOCK_KEY", "missing")
    with interlock.connect(url) as reader:
        assert words(reader.record.verify()) == OK
    with pytest.raises(BadInput, match="interlock key new missing"):
        interlock.connect(url, agent="ada")


def test_a_key_in_an_ssh_agent_signs_no_entries(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ssh-agent cannot sign the record"):
        interlock.connect(str(tmp_path / "store.db"), key=OPS.fingerprint)


class Failing(KeySigner):
    """A signer that fails when it is told to."""

    fails = False

    def sign(self, data: bytes) -> bytes:
        if self.fails:
            raise NotAllowed("the key is gone")
        return super().sign(data)


def test_a_signer_that_fails_ends_the_call_and_leaves_the_record_sound(
    url: str, tmp_path: Path
) -> None:
    signer = Failing(OPS._key)
    with interlock.connect(url, agent="ada", key=signer) as ada:
        busy(ada)
        signer.fails = True
        unlinked = tuple(ada.context.runner.chain._unlinked)
        with pytest.raises(NotAllowed, match="the key is gone"):
            ada.locks.acquire("other", ttl=60)
        assert tuple(ada.context.runner.chain._unlinked) == unlinked != ()
        signer.fails = False
        assert isinstance(ada.locks.acquire("other", ttl=60), interlock.Acquired)
        found = agree(ada, tmp_path)
        assert words(found) == OK
        assert found.unsigned is None


def test_what_a_commit_opens_is_signed_by_the_client_that_made_the_commit(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    with interlock.connect(url, agent="ada", key=OPS) as ada:
        ada.guards.define(guard.named("calm", guard.lock_free("deploy")))
        ada.locks.acquire("deploy")
        ada.tasks.publish("t1", guard=["calm"])
        before = ada.record.verify().entries
        ada.locks.release("deploy")
        assert ada.tasks.show("t1").state == "pending"
        found = agree(ada, tmp_path)
        assert words(found) == OK
        assert found.unsigned is None
        assert found.entries >= before + 2
        assert found.signed[0].entries == found.entries


class FailsOnce(KeySigner):
    """A key that is gone for one signature."""

    left = -1

    def sign(self, data: bytes) -> bytes:
        self.left -= 1
        if self.left == 0:
            raise NotAllowed("the key is gone")
        return super().sign(data)


def test_a_signer_that_fails_for_what_a_commit_opens_leaves_the_record_sound(
    tmp_path: Path,
) -> None:
    signer = FailsOnce(OPS._key)
    with interlock.connect(str(tmp_path / "store.db"), agent="ada", key=signer) as ada:
        ada.guards.define(guard.named("calm", guard.lock_free("deploy")))
        ada.locks.acquire("deploy")
        ada.tasks.publish("t1", guard=["calm"])
        signer.left = 2  # the release is signed, the entry of the task behind it is not
        assert ada.locks.release("deploy")
        assert signer.left <= 0
        for name in ("a", "b"):
            assert ada.locks.acquire(name)
        found = agree(ada, tmp_path)
        assert words(found) == OK
        assert found.unsigned is None


# ---- the field ----------------------------------------------------------------------------------


def test_a_signature_is_over_the_stored_bytes_without_it() -> None:
    bare = codec.encode(Entry(id="txn_1", agent="ada", reason='"signed":{', put={"a/b": "0"}))
    made = sign(bare, OPS)
    found = check_record.signature_of(made, 7)
    assert found is not None
    assert (found.revision, found.key) == (7, OPS.public_key)
    data = signing.signed_bytes("application/vnd.interlock.entry.v1+json", bare)
    assert found.data == data
    assert signing.fits(OPS.public_key, found.signature, data)
    assert codec.encode(decode(made)) == made  # it is the last field
    assert len(made) - len(bare) == check_record.SIGNED_SIZE - 1


def test_the_checker_verifies_as_the_library_does() -> None:
    doubtful = json.loads((DATA / "ed25519-speccheck.json").read_text())
    cases = [tuple(each[name] for name in ("pub_key", "signature", "message")) for each in doubtful]
    groups = json.loads((DATA / "wycheproof-ed25519.json").read_text())["testGroups"]
    for group in groups:
        key = group["publicKey"]["pk"]
        cases += [(key, case["sig"], case["msg"]) for case in group["tests"][:3]]
    for case in cases:
        key, signature, message = map(bytes.fromhex, case)
        expected = signing.fits(key, signature, message)
        assert check_record.signature_fits(key, signature, message) == expected, case


def test_the_checker_refuses_the_keys_of_small_order() -> None:
    everything = bytes([1, *bytes(31)]) + bytes(32)
    for key in signing.SMALL_ORDER:
        assert not check_record.signature_fits(key, everything, b"any")


# ---- tampering ----------------------------------------------------------------------------------


def a_history() -> History:
    """Two entries of a writer that signs, two of one that does not, one more of the first."""
    history = History()
    history.commit("wtr_1", put="locks/a", signer=OPS, agent="ada")
    history.commit("wtr_2", put="locks/b", agent="bob")
    history.commit("wtr_1", put="locks/a", signer=OPS, agent="ada")
    history.commit("wtr_2", put="locks/b", agent="bob")
    history.commit("wtr_1", put="locks/c", signer=OPS, agent="ada")
    return history


def test_an_untouched_history_is_sound() -> None:
    found = judged(a_history())
    assert words(found) == OK
    assert [(each.key, each.entries) for each in found.signed] == [(OPS.fingerprint, 3)]
    assert found.unsigned is not None
    assert (found.unsigned.entries, found.unsigned.begins, found.unsigned.ends) == (2, 2, 4)


def rewrite(history: History, revision: int, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of the last entry, with its hash, and that of the item that it wrote."""
    place = history.place(revision)
    item = history.entries[place]
    raw = change(item.value)
    hash_ = codec.digest(raw)
    history.entries[place] = msgspec.structs.replace(item, value=raw, hash=hash_)
    for key, written in history.items.items():
        if written.revision == revision:
            history.items[key] = msgspec.structs.replace(written, hash=hash_)


def stripped(data: bytes) -> bytes:
    return codec.encode(msgspec.structs.replace(decode(data), signed=None))


def resigned(data: bytes) -> bytes:
    return sign(stripped(data).replace(b'"ada"', b'"eve"'), EVE)


def other_base64(data: bytes) -> bytes:
    end = data.rindex(b'=="}}')
    sign_ = data[end - 1 : end]
    other = {b"A": b"B", b"Q": b"R", b"g": b"h", b"w": b"x"}[sign_]
    return data[: end - 1] + other + data[end:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.replace(b'"ada"', b'"eve"'), "a signature that does not fit"),
        (stripped, "is not signed, and its writer signs"),
        (resigned, "signed by another key"),
        (other_base64, "a signature that cannot be read"),
        (lambda data: data.replace(b'"signature":"', b'"signature":"!')[:-4] + b'"}}', "read"),
        (lambda data: data.replace(b'"signature":', b'"signatura":'), "cannot be read"),
    ],
)
def test_a_changed_last_entry_shows_although_nothing_links_it(
    change: Callable[[bytes], bytes], says: str
) -> None:
    history = a_history()
    rewrite(history, 5, change)
    found = judged(history)
    assert places(found.findings) == [("integrity", 5)]
    assert says in found.findings[0].says


def test_an_entry_of_a_new_writer_cannot_pass_for_a_signed_one() -> None:
    history = a_history()
    signature = decode(history.entries[0].value).signed
    assert signature is not None
    history.commit("wtr_3", put="locks/d", agent="ada", signed=signature)
    found = judged(history)
    assert places(found.findings) == [("integrity", 6)]
    assert "does not fit" in found.findings[0].says


def test_a_writer_that_begins_to_sign_later_is_a_finding() -> None:
    history = a_history()
    history.commit("wtr_2", put="locks/b", signer=OPS, agent="bob")
    assert places(judged(history).findings) == [("integrity", 6)]


def test_a_key_of_small_order_signs_nothing() -> None:
    history = a_history()
    weak = bytes([1, *bytes(31)])
    forged = Signature(key=signing.to_base64(weak), signature=signing.to_base64(weak + bytes(32)))
    history.commit("wtr_3", put="locks/d", signed=forged)
    assert places(judged(history).findings) == [("integrity", 6)]


def test_a_signature_elsewhere_in_an_entry_counts_as_none() -> None:
    history = a_history()
    raw = history.entries[0].value
    place = raw.index(b',"signed":')
    moved = b"{" + raw[place + 1 : -1] + b"," + raw[1:place] + b"}"
    assert decode(moved) == decode(raw)
    id_ = "txn_9"
    history.entries = [Item(f"log/{id_}", moved.replace(b"txn_1", b"txn_9"), 1, 1, id_, "")]
    assert judged(history).signed == ()


def test_many_signatures_are_verified_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_record, "UNCHECKED", 1)
    history = a_history()
    rewrite(history, 3, lambda data: data.replace(b'"ada"', b'"eve"'))
    assert ("integrity", 3) in places(judged(history).findings)


def test_the_checker_alone_says_who_signed(tmp_path: Path) -> None:
    with (
        interlock.connect(str(tmp_path / "store.db"), agent="ada", key=OPS) as ada,
        interlock.connect(str(tmp_path / "store.db"), agent="bob") as bob,
    ):
        busy(ada, 1)
        busy(bob, 1)
        ada.record.export(str(tmp_path / "record.jsonl"))
    status, said = checker(tmp_path / "record.jsonl")
    assert status == 0
    assert f"signed by {OPS.fingerprint}: 4 entries, revision 2 to 6, of ada" in said
    assert "not signed: 3 entries, revision 3 to 8, of bob" in said
    assert "signed for the store sto_" in said
    changed = (tmp_path / "record.jsonl").read_text().replace("ada", "eve")
    (tmp_path / "record.jsonl").write_text(changed)
    status, said = checker(tmp_path / "record.jsonl")
    assert status == 1
    assert "integrity at revision 2" in said


# ---- another store ------------------------------------------------------------------------------


def test_a_chain_that_was_signed_for_another_store_is_found_entry_by_entry() -> None:
    history = History()
    history.commit("wtr_1", put="locks/a", signer=OPS, agent="ada", store="sto_here")
    for _ in range(2):
        history.commit("wtr_2", put="locks/b", signer=EVE, agent="eve", store="sto_there")
    found = judged(history)
    assert places(found.findings) == [("integrity", 2), ("integrity", 3)]
    said = "was signed for the store sto_there, and this is sto_here"
    assert said in found.findings[0].says


def test_an_entry_whose_store_was_changed_has_a_signature_that_does_not_fit() -> None:
    history = History()
    history.commit("wtr_1", put="locks/a", signer=OPS, agent="ada", store="sto_there")
    rewrite(history, 1, lambda data: data.replace(b"sto_there", b"sto_other"))
    assert "does not fit" in judged(history).findings[0].says


def test_the_whole_record_of_another_store_is_found_live_and_by_the_checker(
    tmp_path: Path,
) -> None:
    """All entries and items of one store are put into the file of another, by hand."""
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    for path in (ours, theirs):
        with interlock.connect(str(path), agent="ada", key=OPS) as ada:
            busy(ada, 1)
    with closing(sqlite3.connect(ours)) as db, db:
        db.execute(f"ATTACH '{theirs}' AS theirs")
        db.execute("DELETE FROM log")
        db.execute("DELETE FROM item WHERE key <> 'meta/store'")
        db.execute("INSERT INTO log SELECT * FROM theirs.log")
        db.execute("INSERT INTO item SELECT * FROM theirs.item WHERE key <> 'meta/store'")
    with interlock.connect(str(ours)) as fleet:
        found = agree(fleet, tmp_path)
        assert found.integrity == "bad"
        assert all("was signed for the store" in each.says for each in found.findings)


def test_a_record_that_was_copied_to_another_engine_names_its_store_as_before(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    with interlock.connect(str(source), agent="ada", key=OPS) as ada:
        busy(ada, 1)
        before = ada.record.verify().store
    with closing(open_store(str(source))) as old, closing(open_store(str(target))) as new:
        places_ = (str(source), str(target))
        StoreCopy(cast("MovableStore", old), cast("MovableStore", new), places_).run()
    with interlock.connect(str(target), agent="bob", key=EVE) as bob:
        busy(bob, 1)
        found = agree(bob, tmp_path)
    assert (words(found), found.store, len(found.signed)) == (OK, before, 2)


def test_signed_entries_of_early_versions_name_no_store_and_count() -> None:
    history = a_history()
    history.commit("wtr_3", put="locks/d", signer=EVE, agent="eve", store="sto_here")
    found = judged(history)
    assert (words(found), found.store) == (OK, "sto_here")
