"""A client of the bus puts there what it likes: the intake believes none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.requests.pair import BUS_ID, Pair, Swarm, new_key, put_item

from interlock.core import codec, keys, signing
from interlock.core.signing import KeySigner
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import ALL
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import QUARANTINE_LIMIT, UNSIGNED_LIMIT, decode_request
from interlock.nouns.requests.views import list_quarantine
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.head import (
    AckHead,
    RequestHead,
    ResultHead,
    digest,
    encode,
    request_head,
    result_head,
)
from interlock.nouns.swarms.limits import PeerLimits
from interlock.nouns.swarms.registry_rules import revoke
from interlock.nouns.swarms.reputation import Reputation
from interlock.nouns.swarms.swarm import Floor
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit

BODY = b"[1,2]"


class Attack:
    """A pair of swarms, and an attacker with the credentials of the bus."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.south = self.pair.swarm("south", "bob")
        self.north = self.pair.swarm("north")
        self.number = 0

    def id(self, kind: str) -> str:
        self.number += 1
        moment = round(self.pair.clock.wall() * 1000)
        return codec.make_id(kind, moment, self.number.to_bytes(10, "big"))

    def head(self, body: bytes = BODY, **changes: Any) -> RequestHead:
        head = request_head(
            message_id=self.id("msg"),
            request_id=self.id("req"),
            from_swarm="north",
            from_agent="ada",
            to_swarm="south",
            to_agent="can:sum",
            task_type="sum",
            body=body,
            key=self.pair.keys["north"].fingerprint,
            bus=BUS_ID,
            now=self.pair.clock.wall(),
        )
        return replace(head, **changes)

    def envelope(self, head: Any, signer: KeySigner | None = None) -> bytes:
        return sign_head(head, signer or self.pair.keys["north"])

    def put(self, envelope: bytes, body: bytes = BODY, message: str = "") -> None:
        message = message or self.id("msg")
        for key, value in (
            (keys.bus_request("south", message), envelope),
            (keys.bus_request_body("south", message), body),
        ):
            put_item(self.pair, self.pair.bus, key, Raw(value))

    def post(self, head: RequestHead, signer: KeySigner | None = None, body: bytes = BODY) -> None:
        self.put(self.envelope(head, signer), body, head.message_id)

    def reasons(self) -> list[str]:
        """Take in, and what the quarantine says; nothing stays on the bus."""
        self.south.take_in()
        pages = [Range(f"{prefix}/south/") for prefix in ("req", "req-body", "res", "ack")]
        found = self.pair.bus.read(*pages).ranges
        assert [item.key for page in pages for item in found[page]] == []
        listed = self.south.run(list_quarantine("", "", 10_000))
        return [each.reason for each in listed]

    def tasks(self) -> int:
        page = Range(keys.READY)
        return len(self.pair.homes["south"].read(page).ranges[page])


@pytest.fixture
def attack() -> Attack:
    return Attack()


def test_an_honest_request_is_taken_in(attack: Attack) -> None:
    attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == ([], 1)


def forged(attack: Attack) -> None:
    envelope = msgspec.json.decode(attack.envelope(attack.head()))
    envelope["signatures"][0]["sig"] = signing.to_base64(bytes(64))
    attack.put(codec.encode(envelope))


def truncated(attack: Attack) -> None:
    attack.put(attack.envelope(attack.head())[:-3])


def re_addressed(attack: Attack) -> None:
    attack.post(attack.head(to_swarm="east"))


def other_bus(attack: Attack) -> None:
    attack.post(attack.head(bus="bus_2"))


def expired(attack: Attack) -> None:
    head = attack.head()
    attack.pair.clock.advance(86400 + 31)
    attack.post(head)


def future(attack: Attack) -> None:
    head = attack.head()
    attack.post(replace(head, timestamp=head.timestamp + 31_000))


def future_id(attack: Attack) -> None:
    attack.pair.clock.jump_wall(60)
    head = attack.head()
    attack.pair.clock.jump_wall(-60)
    now = round(attack.pair.clock.wall() * 1000)
    attack.post(replace(head, timestamp=now))


def unknown_key(attack: Attack) -> None:
    signer = new_key(99)
    attack.post(attack.head(key=signer.fingerprint), signer)


def key_of_the_message(attack: Attack) -> None:
    """The attacker's key, and its public part beside it: no field of a message says who signs."""
    signer = new_key(99)
    envelope = msgspec.json.decode(attack.envelope(attack.head(key=signer.fingerprint), signer))
    envelope["key"] = signing.to_base64(signer.public_key)
    attack.put(codec.encode(envelope))


def other_swarms_key(attack: Attack) -> None:
    own = attack.pair.keys["south"]
    attack.pair.trust("south", "south")
    attack.post(attack.head(key=own.fingerprint), own)


def small_order_key(attack: Attack) -> None:
    key = bytes([1]) + bytes(31)
    name = signing.fingerprint(key)
    peer = attack.pair.peer("north", public=signing.to_base64(key), fingerprint=name)
    put_item(attack.pair, attack.pair.homes["south"], keys.peer("north"), peer)
    envelope = msgspec.json.decode(attack.envelope(attack.head()))
    head = msgspec.json.decode(signing.from_base64(envelope["payload"]) or b"")
    head["key"] = name
    envelope["payload"] = signing.to_base64(codec.encode(head))
    envelope["signatures"] = [{"keyid": name, "sig": signing.to_base64(key + bytes(32))}]
    attack.put(codec.encode(envelope))


def changed_head(attack: Attack) -> None:
    envelope = msgspec.json.decode(attack.envelope(attack.head()))
    payload = signing.from_base64(envelope["payload"]) or b""
    envelope["payload"] = signing.to_base64(payload.replace(b'"priority":5', b'"priority":9'))
    attack.put(codec.encode(envelope))


def other_base64(attack: Attack) -> None:
    envelope = attack.envelope(attack.head())
    attack.put(envelope.replace(b'=="}]', b'\\u003d="}]'))


def duplicate_keys(attack: Attack) -> None:
    envelope = attack.envelope(attack.head())
    attack.put(envelope.replace(b'{"payloadType"', b'{"payloadType":"x","payloadType"', 1))


def nested(attack: Attack) -> None:
    attack.put(b"[" * 16_000 + b"]" * 16_000)


def nested_body(attack: Attack) -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    attack.post(attack.head(body), body=body)


def no_json_body(attack: Attack) -> None:
    body = b"\xff\x00 not JSON"
    attack.post(attack.head(body), body=body)


def short_body(attack: Attack) -> None:
    attack.post(attack.head(), body=b"[1]")


def other_body(attack: Attack) -> None:
    attack.post(attack.head(), body=b"[9,9]")


def no_body(attack: Attack) -> None:
    head = attack.head()
    key = keys.bus_request("south", head.message_id)
    put_item(attack.pair, attack.pair.bus, key, Raw(attack.envelope(head)))


def large_envelope(attack: Attack) -> None:
    attack.put(attack.envelope(attack.head()) + b" " * 20_000)


def large_body(attack: Attack) -> None:
    attack.post(attack.head(source_size=100_000_000))


def other_type(attack: Attack) -> None:
    request = attack.head()
    head = result_head(
        replace(request, from_swarm="south", to_swarm="north"),
        message_id=attack.id("msg"),
        status="success",
        executed_by="ada",
        executed_at=attack.pair.clock.wall(),
        body=BODY,
        key=attack.pair.keys["north"].fingerprint,
        now=attack.pair.clock.wall(),
    )
    attack.put(attack.envelope(head), message=head.message_id)


def duplicate_field(attack: Attack) -> None:
    """A head that says one thing to one parser and another to the next, with a valid signature."""
    payload = encode(attack.head()).replace(b'"priority":5', b'"priority":1,"priority":5')
    attack.put(signed_bytes(attack, payload))


def other_text(attack: Attack) -> None:
    attack.put(signed_bytes(attack, encode(attack.head()).replace(b",", b", ", 1)))


def expires_after_deadline(attack: Attack) -> None:
    head = attack.head()
    attack.put(signed_bytes(attack, encode(replace(head, expires=head.deadline + 1))))


def no_way_to_answer(attack: Attack) -> None:
    """The result of a request goes to ``reply_to``: a worker would fail when it signs that."""
    payload = encode(attack.head()).replace(b'"reply_to":"ada"', b'"reply_to":"a\\nda"')
    attack.put(signed_bytes(attack, payload))


def an_invisible_correlation(attack: Attack) -> None:
    payload = encode(attack.head(correlation_id="none")).replace(b'"none"', b'"no\\u001bne"')
    attack.put(signed_bytes(attack, payload))


def deadline_too_far(attack: Attack) -> None:
    later = 8 * 86_400_000
    attack.post(attack.head(deadline=round(attack.pair.clock.wall() * 1000) + later))


def hash_alone(attack: Attack) -> None:
    """Who signs a hash alone leaves sender, receiver and time to anyone."""
    head = attack.head()
    signer = attack.pair.keys["north"]
    envelope = msgspec.json.decode(attack.envelope(head))
    envelope["signatures"][0]["sig"] = signing.to_base64(signer.sign(head.source_hash.encode()))
    attack.put(codec.encode(envelope))


def other_bits(attack: Attack) -> None:
    """The last character of base64 has bits that stand for nothing."""
    envelope = msgspec.json.decode(attack.envelope(attack.head()))
    text = envelope["signatures"][0]["sig"]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = letters[letters.index(text[-3]) + 1]
    envelope["signatures"][0]["sig"] = f"{text[:-3]}{other}=="
    attack.put(codec.encode(envelope))


def a_hundred_megabytes(attack: Attack) -> None:
    put_raw(attack, keys.bus_request("south", attack.id("msg")), bytes(100_000_000))


def a_body_of_a_hundred_megabytes(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    put_raw(attack, keys.bus_request_body("south", head.message_id), bytes(100_000_000))


def misplaced(attack: Attack) -> None:
    attack.put(attack.envelope(attack.head()), message="msg_another")


def not_on_the_list(attack: Attack) -> None:
    put_item(
        attack.pair,
        attack.pair.homes["south"],
        keys.peer("north"),
        replace(attack.pair.peer("north"), allowed=False),
    )
    attack.post(attack.head())


def revoked_key(attack: Attack) -> None:
    name = attack.pair.keys["north"].fingerprint
    put_item(
        attack.pair,
        attack.pair.homes["south"],
        keys.peer("north"),
        replace(attack.pair.peer("north"), revoked=(name,)),
    )
    attack.post(attack.head(timestamp=1))  # also dated back


def a_swarm_that_signed_two_results(attack: Attack) -> None:
    """Too often: of the last requests to it, every tenth and more had two different results."""
    record = Reputation(outcomes="c....." * 10)
    put_item(attack.pair, attack.pair.homes["south"], keys.reputation("north"), record)
    attack.post(attack.head())


def a_key_that_was_revoked(attack: Attack) -> None:
    """As an operator leaves it: the key is off the list, and is remembered as revoked."""
    ended = revoke(
        attack.pair.peer("north"),
        Floor(swarm="north"),
        attack.pair.keys["north"].fingerprint,
        None,
    )
    put_item(attack.pair, attack.pair.homes["south"], keys.peer("north"), ended)
    attack.post(attack.head())


ATTACKS: list[tuple[Callable[[Attack], None], str]] = [
    (forged, "signature_verification_failed"),
    (truncated, "malformed"),
    (re_addressed, "wrong_audience"),
    (other_bus, "wrong_bus"),
    (expired, "expired"),
    (future, "future"),
    (future_id, "future"),
    (unknown_key, "unknown_key"),
    (key_of_the_message, "malformed"),
    (other_swarms_key, "wrong_sender"),
    (small_order_key, "unknown_key"),
    (changed_head, "signature_verification_failed"),
    (other_base64, "malformed"),
    (duplicate_keys, "malformed"),
    (nested, "too_large"),
    (nested_body, "malformed"),
    (no_json_body, "malformed"),
    (short_body, "body_mismatch"),
    (other_body, "body_mismatch"),
    (no_body, "body_mismatch"),
    (large_envelope, "too_large"),
    (large_body, "too_large"),
    (other_type, "wrong_type"),
    (duplicate_field, "malformed"),
    (other_text, "malformed"),
    (expires_after_deadline, "malformed"),
    (no_way_to_answer, "malformed"),
    (an_invisible_correlation, "malformed"),
    (deadline_too_far, "deadline_too_far"),
    (hash_alone, "signature_verification_failed"),
    (other_bits, "malformed"),
    (a_hundred_megabytes, "too_large"),
    (a_body_of_a_hundred_megabytes, "body_mismatch"),
    (misplaced, "wrong_request"),
    (not_on_the_list, "unknown_key"),
    (revoked_key, "revoked_key"),
    (a_key_that_was_revoked, "revoked_key"),
    (a_swarm_that_signed_two_results, "blocked"),
]


def signed_bytes(attack: Attack, payload: bytes) -> bytes:
    """An envelope around any bytes, with a valid signature of north."""
    signer, kind = attack.pair.keys["north"], RequestHead.payload_type
    signature = signing.to_base64(signer.sign(signing.signed_bytes(kind, payload)))
    return codec.encode(
        {
            "payloadType": kind,
            "payload": signing.to_base64(payload),
            "signatures": [{"keyid": signer.fingerprint, "sig": signature}],
        }
    )


def put_raw(attack: Attack, key: str, value: bytes) -> None:
    """Write what no client of Interlock would."""
    attack.pair.bus.commit(Txn(id=attack.id("txn"), puts=(Put(key, value),), quiet=True))


@pytest.mark.parametrize(("act", "reason"), ATTACKS, ids=lambda each: getattr(each, "__name__", ""))
def test_it_is_kept_in_quarantine_with_its_reason(
    attack: Attack, act: Callable[[Attack], None], reason: str
) -> None:
    act(attack)
    assert (attack.reasons(), attack.tasks()) == ([reason], 0)
    attack.post(attack.head(key=attack.pair.keys["north"].fingerprint))
    assert audit(attack.pair.homes["south"]) == []


# Replay.


def test_a_replay_is_taken_in_once(attack: Attack) -> None:
    head = attack.head()
    for _ in range(3):
        attack.post(head)
        assert attack.reasons() == []
        assert attack.tasks() == 1


def test_the_signature_of_an_accepted_message_covers_no_other_payload(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    good = msgspec.json.decode(attack.envelope(head))
    other = msgspec.json.decode(attack.envelope(attack.head(b"[9]")))
    other["signatures"] = good["signatures"]
    attack.put(codec.encode(other), b"[9]")
    assert (attack.reasons(), attack.tasks()) == (["signature_verification_failed"], 1)


def test_a_replay_is_known_until_its_deadline_also_after_a_flood_and_after_housekeeping(
    attack: Attack,
) -> None:
    peer = replace(attack.pair.peer("north"), limits=PeerLimits(rate=0))
    put_item(attack.pair, attack.pair.homes["south"], keys.peer("north"), peer)
    head = attack.head()
    attack.post(head)
    for _ in range(60):
        attack.post(attack.head())
    attack.reasons()
    finish_all(attack)
    attack.pair.clock.advance(86400 - 60)
    maintain(attack)
    attack.post(head)
    assert attack.reasons() == []
    assert attack.tasks() == 0
    attack.pair.clock.advance(60 + 31)  # now its expiry protects from it
    maintain(attack)
    attack.post(head)
    assert (attack.reasons(), attack.tasks()) == (["expired"], 0)


def test_a_request_is_known_by_its_id_although_its_task_is_deleted(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    finish_all(attack)
    task = attack.south.run(attack.south.requests.answers.received("north", head.request_id))
    assert task is not None
    delete(attack, keys.status(task.task))
    attack.post(replace(head, message_id=attack.id("msg")))
    assert (attack.reasons(), attack.tasks()) == (["replaced"], 0)


def finish_all(attack: Attack) -> None:
    while (claimed := attack.south.claim()) is not None:
        attack.south.answer(claimed)


def maintain(attack: Attack) -> None:
    attack.south.run(HousekeepingPass(attack.south.runner).run(attack.south.actor))


def delete(attack: Attack, key: str) -> None:
    attack.pair.homes["south"].commit(Txn(id=attack.id("txn"), deletes=(key,), quiet=True))


def test_a_message_that_is_signed_again_is_the_same_message(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    attack.pair.clock.advance(3600)
    now = round(attack.pair.clock.wall() * 1000)
    attack.post(replace(head, timestamp=now, attempt=2))
    assert (attack.reasons(), attack.tasks()) == ([], 1)


@pytest.mark.parametrize("field", ["body", "priority", "request_id", "deadline"])
def test_the_same_message_with_another_content_goes_to_quarantine(
    attack: Attack, field: str
) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    body = BODY
    match field:
        case "body":
            body = b"[9,9]"
            other = replace(attack.head(body), message_id=head.message_id)
            other = replace(other, request_id=head.request_id)
        case "priority":
            other = replace(head, priority=9)
        case "request_id":
            other = replace(head, request_id=attack.id("req"))
        case _:
            other = replace(head, deadline=head.deadline + 1000)
    attack.post(other, body=body)
    assert (attack.reasons(), attack.tasks()) == (["replaced"], 1)


def test_the_same_request_as_another_message_goes_to_quarantine(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    attack.post(replace(head, message_id=attack.id("msg")))
    assert (attack.reasons(), attack.tasks()) == (["replaced"], 1)


def test_another_swarm_cannot_take_the_id_of_a_request() -> None:
    attack = Attack()
    attack.pair.add("east")
    attack.pair.trust("south", "east")
    head = attack.head()
    east = attack.pair.keys["east"]
    copied = replace(head, from_swarm="east", key=east.fingerprint, message_id=attack.id("msg"))
    attack.post(copied, east)
    attack.reasons()
    attack.post(head)
    assert (attack.reasons(), attack.tasks()) == ([], 2)


def test_another_swarm_cannot_replace_a_message_to_all_agents() -> None:
    attack = Attack()
    attack.pair.add("east")
    attack.pair.trust("south", "east")
    head = attack.head(to_agent="*")
    attack.post(head)
    attack.reasons()
    east = attack.pair.keys["east"]
    own = replace(head, from_swarm="east", key=east.fingerprint, request_id=attack.id("req"))
    attack.post(own, east)
    attack.reasons()
    page = Range(keys.topic(ALL))
    found = attack.pair.homes["south"].read(page).ranges[page]
    assert sorted(decode.message(item).sender for item in found) == ["ada@east", "ada@north"]


# Trust that changes between verifying and committing.


def test_a_key_that_is_revoked_between_verifying_and_committing_takes_nothing_in(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack.post(attack.head())
    south = attack.pair.swarm("south", "carl")
    name = attack.pair.keys["north"].fingerprint
    verify = south.requests.incoming.open

    def verify_and_revoke(*args: Any) -> Any:
        found = verify(*args)
        if found[0]:
            put_item(
                attack.pair,
                attack.pair.homes["south"],
                keys.peer("north"),
                replace(attack.pair.peer("north"), revoked=(name,)),
            )
        return found

    monkeypatch.setattr(south.requests.incoming, "open", verify_and_revoke)
    south.take_in()
    assert (attack.reasons(), attack.tasks()) == (["revoked_key"], 0)


# Floods.


def test_the_receiver_enforces_the_rate_by_the_signed_times(attack: Attack) -> None:
    attack.pair.trust("south", "north", rate=3)
    for _ in range(5):
        attack.post(attack.head())
    assert (attack.reasons(), attack.tasks()) == (["limited"] * 2, 3)
    attack.post(attack.head(from_agent="eve"))
    attack.reasons()
    assert attack.tasks() == 4


def test_a_flood_of_rubbish_is_bounded_and_leaves_room_for_signed_messages(attack: Attack) -> None:
    for number in range(UNSIGNED_LIMIT + 20):
        attack.put(b"rubbish %d" % number)
    assert len(attack.reasons()) == UNSIGNED_LIMIT < QUARANTINE_LIMIT
    attack.post(attack.head(bus="bus_2"))
    attack.post(attack.head())
    assert (attack.reasons().count("wrong_bus"), attack.tasks()) == (1, 1)


def test_a_replay_flood_commits_nothing(attack: Attack) -> None:
    head = attack.head()
    attack.post(head)
    attack.reasons()
    before = attack.pair.homes["south"].read(Range("x/")).revision
    for _ in range(20):
        attack.post(head)
        attack.reasons()
    assert attack.pair.homes["south"].read(Range("x/")).revision == before


# Results.


def sent(attack: Attack) -> tuple[str, RequestHead]:
    """A request of north that south has taken in, and its head."""
    request = attack.north.sent()
    attack.south.take_in()
    received = attack.south.run(attack.south.requests.answers.received("north", request))
    assert received is not None
    return request, received.head


def post_result(
    attack: Attack, head: RequestHead, body: bytes = b"3", signer: str = "south", **changes: Any
) -> None:
    key = attack.pair.keys[signer]
    result: ResultHead = result_head(
        head,
        message_id=attack.id("msg"),
        status="success",
        executed_by="bob",
        executed_at=1.0,
        body=body,
        key=key.fingerprint,
        now=attack.pair.clock.wall(),
    )
    result = replace(result, **changes)
    id_ = head.request_id
    for place, value in (
        (keys.bus_result("north", id_), sign_head(result, key)),
        (keys.bus_result_body("north", id_), body),
    ):
        put_item(attack.pair, attack.pair.bus, place, Raw(value))


def refused(attack: Attack) -> list[str]:
    attack.north.take_in()
    return [each.reason for each in attack.north.run(list_quarantine("", "", 100))]


def test_a_result_binds_the_head_of_its_request(attack: Attack) -> None:
    request, head = sent(attack)
    _, other = sent(attack)
    post_result(attack, replace(other, request_id=request))
    assert refused(attack) == ["wrong_head"]
    assert isinstance(attack.north.result(request), out.RequestOpen)
    post_result(attack, head)
    attack.north.take_in()
    assert isinstance(attack.north.result(request), out.RequestAnswered)


def test_a_result_of_another_swarm_does_not_count() -> None:
    attack = Attack()
    attack.pair.add("east")
    attack.pair.trust("north", "east")
    request, head = sent(attack)
    post_result(attack, head, signer="east", from_swarm="east")
    assert refused(attack) == ["wrong_swarm"]
    assert isinstance(attack.north.result(request), out.RequestOpen)


def test_a_result_of_a_request_that_was_never_sent_does_not_count(attack: Attack) -> None:
    _, head = sent(attack)
    post_result(attack, replace(head, request_id=attack.id("req")))
    assert refused(attack) == ["unknown_request"]


def test_a_second_result_with_other_bytes_is_a_conflict_and_the_first_stays(
    attack: Attack,
) -> None:
    request, head = sent(attack)
    post_result(attack, head)
    post_result(attack, head)
    assert refused(attack) == []
    post_result(attack, head, body=b"4")
    assert refused(attack) == ["equivocation"]
    found = attack.north.result(request)
    assert found.result == 3
    facts = attack.north.run(_standing(attack.north))
    assert facts == ".c"
    post_result(attack, head, body=b"4")  # a replay, or one more lie about the same request
    post_result(attack, head, body=b"5")
    attack.north.take_in()
    assert attack.north.run(_standing(attack.north)) == ".c"


def _standing(swarm: Swarm) -> Any:
    from interlock.nouns.requests.exchange import decode_reputation
    from interlock.steps import Read

    item = (yield Read(keys.reputation("south")))[keys.reputation("south")]
    found = decode_reputation(item)
    return "" if found is None else found.outcomes


def test_a_result_whose_body_is_another_does_not_count(attack: Attack) -> None:
    request, head = sent(attack)
    post_result(attack, head)
    put_item(attack.pair, attack.pair.bus, keys.bus_result_body("north", request), Raw(b"4"))
    assert refused(attack) == ["body_mismatch"]
    assert isinstance(attack.north.result(request), out.RequestOpen)


def revoking(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """North revokes the key of south right after it has verified something with it."""
    incoming = attack.north.requests.incoming
    verify = incoming.open

    def verify_and_revoke(*args: Any) -> Any:
        found = verify(*args)
        if found[0]:
            name = attack.pair.keys["south"].fingerprint
            put_item(
                attack.pair,
                attack.pair.homes["north"],
                keys.peer("south"),
                replace(attack.pair.peer("south"), revoked=(name,)),
            )
        return found

    monkeypatch.setattr(incoming, "open", verify_and_revoke)


def test_a_result_under_a_key_that_is_revoked_before_the_commit_does_not_count(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, head = sent(attack)
    post_result(attack, head)
    revoking(attack, monkeypatch)
    assert refused(attack) == ["revoked_key"]
    assert isinstance(attack.north.result(request), out.RequestOpen)


# Receipts.


def post_receipt(attack: Attack, head: RequestHead, signer: str = "south", **changes: Any) -> None:
    key, now = attack.pair.keys[signer], round(attack.pair.clock.wall() * 1000)
    receipt = AckHead(
        message_id=attack.id("msg"),
        request_id=head.request_id,
        from_swarm=signer,
        from_agent="bob",
        to_swarm="north",
        to_agent="ada",
        correlation_id=head.correlation_id,
        in_reply_to=digest(head),
        timestamp=now,
        expires=now + 60_000,
        deadline=now + 60_000,
        key=key.fingerprint,
        bus=BUS_ID,
    )
    receipt = replace(receipt, **changes)
    place = keys.bus_receipt("north", receipt.request_id)
    put_item(attack.pair, attack.pair.bus, place, Raw(sign_head(receipt, key)))


def is_taken(attack: Attack, request: str) -> bool:
    item = attack.pair.homes["north"].read(keys.request(request))[keys.request(request)]
    found = decode_request(item)
    return found is not None and found.taken is not None


def test_a_receipt_of_the_swarm_that_was_asked_ends_the_attempts(attack: Attack) -> None:
    request, head = sent(attack)
    post_receipt(attack, head)
    assert (refused(attack), is_taken(attack, request)) == ([], True)


def test_a_receipt_for_another_head_or_of_another_swarm_does_not_count() -> None:
    attack = Attack()
    attack.pair.add("east")
    attack.pair.trust("north", "east")
    request, head = sent(attack)
    post_receipt(attack, head, in_reply_to="0" * 64)
    attack.north.take_in()
    post_receipt(attack, head, signer="east")
    attack.north.take_in()
    post_receipt(attack, replace(head, request_id=attack.id("req")))
    attack.north.take_in()
    post_receipt(attack, head, bus="bus_2")
    assert sorted(refused(attack)) == [
        "wrong_bus",
        "wrong_request",
        "wrong_request",
        "wrong_request",
    ]
    assert not is_taken(attack, request)


def test_a_receipt_under_a_key_that_is_revoked_before_the_commit_does_not_count(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, head = sent(attack)
    post_receipt(attack, head)
    revoking(attack, monkeypatch)
    assert (refused(attack), is_taken(attack, request)) == (["revoked_key"], False)


# Quarantine.


def test_an_operator_releases_a_limited_request(attack: Attack) -> None:
    from interlock.nouns.requests.quarantine_service import drop, release

    attack.pair.trust("south", "north", rate=1)
    attack.post(attack.head())
    attack.post(attack.head())
    assert attack.reasons() == ["limited"]
    kept = attack.south.run(list_quarantine("", "", 10)).messages[0]
    assert kept.releasable
    service, actor = attack.south.requests, attack.south.actor
    done = attack.south.run(release(service, actor, kept.id))
    assert isinstance(done, out.QuarantineReleased)
    assert (attack.tasks(), attack.reasons()) == (2, [])
    assert isinstance(attack.south.run(drop(service, actor, (kept.id,))), out.UnknownQuarantine)


def test_what_no_known_key_signed_cannot_be_released(attack: Attack) -> None:
    from interlock.nouns.requests.quarantine_service import drop, release

    forged(attack)
    attack.reasons()
    kept = attack.south.run(list_quarantine("", "", 10)).messages[0]
    assert not kept.releasable
    service, actor = attack.south.requests, attack.south.actor
    assert isinstance(attack.south.run(release(service, actor, kept.id)), out.QuarantineKept)
    attack.south.run(drop(service, actor, (kept.id,)))
    assert attack.reasons() == []


# Deletions from the bus.


def later(attack: Attack, name: str, *, local: bool) -> Callable[[], None]:
    """Leave the deletions of a process for later; returns what does them."""
    swarm = attack.pair.swarm(name, "eve", faulty=not local)
    setattr(attack, name, swarm)
    cleanup = swarm.requests.cleanup
    cleanup.start = lambda: None
    return lambda: swarm.run(cleanup.finish())


@pytest.mark.parametrize("local", [True, False])
def test_a_result_that_replaced_rubbish_is_not_deleted_with_it(
    attack: Attack, *, local: bool
) -> None:
    delete = later(attack, "north", local=local)
    request = attack.north.sent()
    place = keys.bus_result("north", request)
    put_item(attack.pair, attack.pair.bus, place, Raw(b'"rubbish"'))
    attack.north.take_in()
    attack.south.work()
    delete()
    assert attack.pair.bus.read(place)[place] is not None
    attack.north.take_in()
    assert isinstance(attack.north.result(request), out.RequestAnswered)
    delete()
    assert attack.pair.bus.read(place)[place] is None


@pytest.mark.parametrize("local", [True, False])
def test_a_later_attempt_is_not_deleted_with_the_one_before(attack: Attack, *, local: bool) -> None:
    delete = later(attack, "south", local=local)
    attack.north.sent()
    attack.south.take_in()
    page = Range(keys.bus_request("south"))
    (first,) = attack.pair.bus.read(page).ranges[page]
    attack.pair.clock.advance(61)
    attack.north.tend()
    delete()
    (second,) = attack.pair.bus.read(page).ranges[page]
    assert second.key == first.key
    assert second.revision > first.revision
    body = keys.bus_request_body("south", keys.id_of(first.key))
    assert attack.pair.bus.read(body)[body] is not None
    attack.south.take_in()
    delete()
    assert attack.reasons() == []


@pytest.mark.parametrize("local", [True, False])
def test_one_envelope_that_keeps_changing_does_not_keep_the_others_on_the_bus(
    attack: Attack, *, local: bool
) -> None:
    delete = later(attack, "south", local=local)
    for _ in range(3):
        attack.north.sent()
    attack.south.take_in()
    page = Range(keys.bus_request("south"))
    first, *_ = attack.pair.bus.read(page).ranges[page]
    put_item(attack.pair, attack.pair.bus, first.key, Raw(b'"again"'))
    delete()
    assert [item.key for item in attack.pair.bus.read(page).ranges[page]] == [first.key]
