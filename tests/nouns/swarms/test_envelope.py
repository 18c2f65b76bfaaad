"""Envelopes: what is opened, and every attack that is refused with its word."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.nouns.swarms.swarm_heads import (
    ADA,
    BANK,
    BODY,
    BUS,
    NEW,
    NOW,
    SHOP,
    STRANGER,
    TrustList,
    a_request,
    a_revocation,
    an_entry,
    reason,
    sign_bytes,
)

from interlock.core import signing
from interlock.errors import BadInput, TooLarge
from interlock.nouns.swarms import envelope, head
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    OpenedEnvelope,
    TrustedKey,
    body_refusal,
    claimed_keys,
    claimed_signers,
    open_envelope,
    sign_head,
)
from interlock.nouns.swarms.head import (
    RegisteredAgent,
    RegistryHead,
    RequestHead,
    ResultHead,
    RevocationHead,
    agent_key,
    digest,
    fixed_digest,
    next_attempt,
    registered_agent,
    result_head,
)

TRUST = TrustList(shop=SHOP, bank=BANK)


def open_request(
    data: bytes, trust: TrustList = TRUST, *, now: float = NOW, swarm: str = "bank", bus: str = BUS
) -> OpenedEnvelope[RequestHead] | EnvelopeRefused:
    return open_envelope(data, RequestHead, trust, swarm=swarm, bus=bus, now=now)


def open_entry(
    data: bytes, trust: TrustList = TRUST, *, now: float = NOW, bus: str = BUS
) -> OpenedEnvelope[RegistryHead] | EnvelopeRefused:
    return open_envelope(data, RegistryHead, trust, bus=bus, now=now)


def test_what_was_signed_is_opened() -> None:
    sent = a_request(confidence=0.5, citations=("doc/1",))
    found = open_request(sign_head(sent, SHOP))
    assert isinstance(found, OpenedEnvelope)
    assert found.head == sent
    assert found.digest == digest(sent)
    assert found.key.swarm == "shop"
    assert body_refusal(found.head, BODY) is None


def test_an_envelope_is_dsse_with_these_fields_alone() -> None:
    made = json.loads(sign_head(a_request(), SHOP))
    assert list(made) == ["payloadType", "payload", "signatures"]
    assert made["payloadType"] == "application/vnd.interlock.request.v1+json"
    assert [list(each) for each in made["signatures"]] == [["keyid", "sig"]]
    assert made["signatures"][0]["keyid"] == SHOP.fingerprint


def test_a_head_has_every_field_and_an_envelope_is_small() -> None:
    sent = a_request()
    assert set(json.loads(head.encode(sent))) == {
        *("message_id", "request_id", "act", "from_swarm", "from_agent", "to_swarm", "to_agent"),
        *("task_type", "priority", "request_timeout_ms", "correlation_id", "reply_to"),
        *("timestamp", "expires", "deadline", "attempt", "source_hash", "source_size"),
        *("key", "bus"),
    }
    assert len(sign_head(sent, SHOP)) < 1300


def test_the_defaults_are_half_a_minute_a_day_and_priority_five() -> None:
    sent = a_request()
    assert (sent.request_timeout_ms, sent.priority, sent.attempt) == (30_000, 5, 1)
    assert sent.deadline - sent.timestamp == 24 * 3600 * 1000
    assert sent.expires == sent.deadline


@pytest.mark.parametrize("to", ["bob", "can:translate", "*"])
def test_a_request_goes_to_an_agent_an_ability_or_all(to: str) -> None:
    assert reason(open_request(sign_head(a_request(to_agent=to), SHOP))) == "opened"


# ---- forged, changed, cut -----------------------------------------------------------------------


def test_any_change_of_one_bit_is_refused() -> None:
    made = sign_head(a_request(), SHOP)
    for place in range(len(made)):
        for bit in range(8):
            changed = bytearray(made)
            changed[place] ^= 1 << bit
            assert isinstance(open_request(bytes(changed)), EnvelopeRefused), place


@given(st.data())
def test_any_change_of_one_byte_of_envelope_or_body_is_refused(data: st.DataObject) -> None:
    made = sign_head(a_request(), SHOP)
    whole = made + BODY
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda each: each != whole[place]))
    changed = whole[:place] + bytes([byte]) + whole[place + 1 :]
    found = open_request(changed[: len(made)])
    if isinstance(found, OpenedEnvelope):
        assert body_refusal(found.head, changed[len(made) :]) is not None


@given(st.data())
def test_an_envelope_with_bytes_removed_or_added_is_refused(data: st.DataObject) -> None:
    made = sign_head(a_request(), SHOP)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(made))] * 2)))
    put = data.draw(st.binary(max_size=20))
    changed = made[:start] + put + made[end:]
    assert changed == made or isinstance(open_request(changed), EnvelopeRefused)


@given(st.binary(max_size=400))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    assert reason(open_request(data)) == "malformed"
    assert claimed_keys(data) == {}
    assert claimed_signers(data, RequestHead) == ()


@given(st.binary(max_size=400))
def test_any_other_bytes_are_no_head_even_if_they_are_signed(data: bytes) -> None:
    assert reason(open_request(sign_bytes(data))) == "malformed"


def test_a_signature_of_another_key_under_our_name_is_refused() -> None:
    made = sign_bytes(head.encode(a_request()), STRANGER)
    forged = made.replace(STRANGER.fingerprint.encode(), SHOP.fingerprint.encode())
    assert reason(open_request(forged)) == "signature_verification_failed"


def test_a_changed_head_under_the_old_signature_is_refused() -> None:
    made = json.loads(sign_head(a_request(), SHOP))
    other = head.encode(a_request(priority=9))
    made["payload"] = b64encode(other).decode()
    changed = msgspec.json.encode(made)
    assert reason(open_request(changed)) == "signature_verification_failed"


def test_a_key_in_the_message_counts_for_nothing() -> None:
    made = sign_head(a_request(key=STRANGER.fingerprint), STRANGER)
    assert reason(open_request(made)) == "unknown_key"


def test_the_head_names_the_key_that_signed_it() -> None:
    made = sign_bytes(head.encode(a_request()), BANK)  # the key in it is the one of shop
    assert reason(open_request(made)) == "malformed"


def test_a_key_of_small_order_never_counts_even_on_the_list() -> None:
    weak = bytes([1, *bytes(31)])
    name = signing.fingerprint(weak)
    trust = TrustList()
    trust.keys[name] = TrustedKey(public_key=weak, swarm="shop")
    payload = head.encode(a_request(key=name))
    forged = msgspec.json.encode(
        {
            "payloadType": RequestHead.payload_type,
            "payload": b64encode(payload).decode(),
            "signatures": [{"keyid": name, "sig": b64encode(weak + bytes(32)).decode()}],
        }
    )
    assert reason(open_request(forged, trust)) == "signature_verification_failed"


def test_a_list_that_gives_another_key_than_was_asked_for_is_not_believed() -> None:
    trust = TrustList()
    trust.keys[SHOP.fingerprint] = TrustedKey(public_key=BANK.public_key, swarm="shop")
    assert reason(open_request(sign_head(a_request(), SHOP), trust)) == "unknown_key"


def test_a_signature_over_the_head_alone_does_not_count() -> None:
    payload = head.encode(a_request())
    forged = msgspec.json.encode(
        {
            "payloadType": RequestHead.payload_type,
            "payload": b64encode(payload).decode(),
            "signatures": [
                {"keyid": SHOP.fingerprint, "sig": b64encode(SHOP.sign(payload)).decode()}
            ],
        }
    )
    assert reason(open_request(forged)) == "signature_verification_failed"


def test_an_envelope_of_one_kind_is_none_of_another() -> None:
    made = sign_head(a_request(), SHOP)
    found = open_envelope(made, ResultHead, TRUST, swarm="bank", bus=BUS, now=NOW)
    assert reason(found) == "wrong_type"
    relabelled = made.replace(b"interlock.request", b"interlock.result")
    found = open_envelope(relabelled, ResultHead, TRUST, swarm="bank", bus=BUS, now=NOW)
    assert reason(found) == "signature_verification_failed"


# ---- other texts of the same envelope and head --------------------------------------------------


def texts_of_an_envelope() -> dict[str, bytes]:
    made = sign_head(a_request(), SHOP)
    parts = json.loads(made)
    one = parts["signatures"][0]
    bare = one["sig"].rstrip("=")
    assert one["sig"] == f"{bare}=="
    bumped = bare[:-1] + {"A": "B", "Q": "R", "g": "h", "w": "x"}[bare[-1]] + "=="

    def with_signature(text: str) -> bytes:
        return msgspec.json.encode({**parts, "signatures": [{**one, "sig": text}]})

    return {
        "a blank": made + b" ",
        "a line break": made.replace(b",", b",\n", 1),
        "an unknown field": msgspec.json.encode({**parts, "more": 1}),
        "an unknown field of a signature": msgspec.json.encode(
            {**parts, "signatures": [{**one, "more": 1}]}
        ),
        "a field twice": b'{"payloadType":"x",' + made[1:],
        "another order": msgspec.json.encode(dict(reversed(parts.items()))),
        "an escape": made.replace(b"payloadType", rb"payload\u0054ype"),
        "other base64": with_signature(bumped),
        "base64 without padding": with_signature(bare),
        "base64 with a line break": with_signature(one["sig"] + "\n"),
        "no base64": with_signature("!"),
        "base64 of a payload with a blank": msgspec.json.encode(
            {**parts, "payload": parts["payload"] + " "}
        ),
        "no signature": msgspec.json.encode({**parts, "signatures": []}),
        "the signature twice": msgspec.json.encode({**parts, "signatures": [one, one]}),
        "three signatures": msgspec.json.encode({**parts, "signatures": [one, one, one]}),
        "no payload": msgspec.json.encode({**parts, "payload": None}),
        "a mark in front": b"\xef\xbb\xbf" + made,
        "a cut": made[:-1],
        "no object": b"[]",
        "nothing": b"",
        "not UTF-8": b'{"payloadType":"\xff"}',
        "half a surrogate": rb'{"payloadType":"\ud800"}',
        "nested deeply": b"[" * 16_000,
        "objects nested deeply": b'{"a":' * 3000,
        "nested in a field": b'{"signatures":' + b"[" * 16_000,
        "no fingerprint": made.replace(b"SHA256:", b"SHA512:"),
    }


@pytest.mark.parametrize("what", list(texts_of_an_envelope()))
def test_another_text_of_an_envelope_is_refused(what: str) -> None:
    assert reason(open_request(texts_of_an_envelope()[what])) == "malformed"


def texts_of_a_head() -> dict[str, bytes]:
    made = head.encode(a_request())
    fields = json.loads(made)

    def other(**changed: Any) -> bytes:
        return msgspec.json.encode({**fields, **changed})

    return {
        "a blank": made + b" ",
        "a field twice": made[:-1] + b',"priority":9}',
        "the same field twice": made[:-1] + b',"priority":5}',
        "an unknown field": other(more=1),
        "another order": msgspec.json.encode(dict(sorted(fields.items()))),
        "an escape": made.replace(b'"shop"', rb'"\u0073hop"'),
        "a default that is written out": made[:-1] + b',"confidence":null}',
        "a number as another text": made.replace(b'"priority":5', b'"priority":5.0'),
        "a number with an exponent": made.replace(b'"priority":5', b'"priority":5e0'),
        "minus zero": made.replace(b'"source_size":13', b'"source_size":-0'),
        "a huge number": made.replace(b'"attempt":1', b'"attempt":' + b"9" * 5000),
        "an infinite number": made.replace(b'"attempt":1', b'"attempt":1e999'),
        "not a number": made.replace(b'"attempt":1', b'"attempt":NaN'),
        "a negative time": other(timestamp=-1),
        "a time beyond any": other(deadline=2**60),
        "half a surrogate": made.replace(b'"shop"', rb'"\ud800"'),
        "not UTF-8": made.replace(b'"shop"', b'"\xff"'),
        "nested deeply": b"[" * 9000,
        "a nested field": made.replace(b'"shop"', b"[" * 9000),
        "an unknown act": other(act="order"),
        "a priority of 11": other(priority=11),
        "a priority of 0": other(priority=0),
        "true for one": other(attempt=True),
        "an id of another form": other(message_id="1"),
        "an id with a line break": other(message_id=fields["message_id"] + "\n"),
        "a hash in capitals": other(source_hash=fields["source_hash"].upper()),
        "no name": other(from_agent=""),
        "a name that cannot be seen": other(from_agent="a\u202eb"),
        "a name with an escape sequence": other(task_type="\x1b[2J"),
        "a name outside of NFC": other(from_agent="e\u0301"),
        "a name that leads elsewhere": other(to_agent="../x"),
        "no ability": other(to_agent="can:"),
        "all abilities": other(to_agent="can:*"),
        "a long name": other(from_agent="x" * 201),
        "expiry after the deadline": other(expires=fields["deadline"] + 1),
        "expiry before it was written": other(expires=fields["timestamp"] - 1),
        **{
            f"no {name}": msgspec.json.encode({k: v for k, v in fields.items() if k != name})
            for name in fields
        },
    }


@pytest.mark.parametrize("what", list(texts_of_a_head()))
def test_another_text_of_a_head_is_refused_though_it_is_signed(what: str) -> None:
    assert reason(open_request(sign_bytes(texts_of_a_head()[what]))) == "malformed"


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":' * 50_000, b'{"signatures":' + b"[" * 100_000],
    ids=["lists", "objects", "signatures"],
)
def test_a_hundred_thousand_levels_are_refused(data: bytes) -> None:
    assert reason(open_request(data)) == "too_large"
    assert reason(open_entry(data)) == "malformed"
    assert reason(open_entry(sign_bytes(data[:100_000], SHOP, RegistryHead))) == "malformed"
    agents = b'{"from_swarm":"shop","agents":' + b"[" * 100_000
    assert reason(open_entry(sign_bytes(agents, SHOP, RegistryHead))) == "malformed"


def test_a_hundred_megabytes_are_refused_by_their_length() -> None:
    found = open_request(bytes(100_000_000))
    assert reason(found) == "too_large"


def test_an_envelope_may_have_16_kib() -> None:
    citations = tuple("x" * 1000 for _ in range(11))
    assert reason(open_request(sign_head(a_request(citations=citations), SHOP))) == "opened"
    with pytest.raises(TooLarge, match="16384"):
        sign_head(a_request(citations=(*citations, "x" * 1000)), SHOP)
    payload = head.encode(a_request(citations=(*citations, "x" * 1000)))
    assert reason(open_request(sign_bytes(payload))) == "too_large"


# ---- sender, audience, time ---------------------------------------------------------------------


def test_a_swarm_that_we_trust_cannot_speak_for_another() -> None:
    made = sign_head(a_request(key=BANK.fingerprint), BANK)  # from shop, it says
    found = open_request(made)
    assert reason(found) == "wrong_sender"
    assert isinstance(found, EnvelopeRefused)
    assert found.head == a_request(key=BANK.fingerprint)  # signed, so it is evidence


def test_the_key_of_an_agent_speaks_for_that_agent_alone() -> None:
    trust = TrustList(shop=SHOP)
    trust.add_agent(ADA, "shop", "ada")
    assert reason(open_request(sign_head(a_request(key=ADA.fingerprint), ADA), trust)) == "opened"
    made = sign_head(a_request(key=ADA.fingerprint, from_agent="bob"), ADA)
    assert reason(open_request(made, trust)) == "wrong_sender"


def test_a_message_for_another_swarm_is_refused() -> None:
    assert reason(open_request(sign_head(a_request(), SHOP), swarm="mill")) == "wrong_audience"


def test_a_message_that_is_replayed_on_another_bus_is_refused() -> None:
    assert reason(open_request(sign_head(a_request(), SHOP), bus="bus_2")) == "wrong_bus"


@pytest.mark.parametrize(
    ("when", "word"),
    [
        (NOW - 30, "opened"),
        (NOW - 31, "future"),
        (NOW + 3600, "opened"),
        (NOW + 3600 + 30, "opened"),
        (NOW + 3600 + 31, "expired"),
    ],
)
def test_clocks_may_differ_by_half_a_minute(when: float, word: str) -> None:
    made = sign_head(a_request(expires=3600), SHOP)
    assert reason(open_request(made, now=when)) == word


def test_a_deadline_further_away_than_marks_are_kept_is_refused() -> None:
    week = 7 * 24 * 3600.0
    assert reason(open_request(sign_head(a_request(deadline=week), SHOP))) == "opened"
    assert reason(open_request(sign_head(a_request(deadline=2 * week), SHOP))) == "deadline_too_far"


def test_a_revoked_key_counts_no_more_whatever_the_time_of_the_message() -> None:
    trust = TrustList(shop=SHOP)
    made = sign_head(a_request(), SHOP)
    back_dated = sign_head(a_request(now=NOW - 40 * 3600, deadline=48 * 3600), SHOP)
    assert reason(open_request(back_dated, trust)) == "opened"
    trust.revoke(SHOP)
    assert reason(open_request(made, trust)) == "revoked_key"
    assert reason(open_request(back_dated, trust)) == "revoked_key"


def test_claimed_signers_say_which_keys_to_look_up() -> None:
    made = sign_head(a_request(), SHOP)
    assert claimed_signers(made, RequestHead) == (SHOP.fingerprint,)
    assert claimed_signers(made, ResultHead) == ()


# ---- bodies and attempts ------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", BODY + b" ", BODY[:-1], BODY.replace(b"hi", b"ho")])
def test_another_body_is_refused(body: bytes) -> None:
    found = body_refusal(a_request(), body)
    assert found is not None
    assert found.reason == "body_mismatch"


def test_a_head_that_lies_about_the_size_of_its_body_is_refused() -> None:
    assert body_refusal(replace(a_request(), source_size=12), BODY) is not None
    huge = replace(a_request(), source_size=100_000_000)
    assert reason(open_request(sign_head(huge, SHOP))) == "too_large"
    with pytest.raises(TooLarge, match="1048576"):
        a_request(body=bytes(1024 * 1024 + 1))


def test_an_empty_body_is_a_body() -> None:
    assert body_refusal(a_request(body=b""), b"") is None


def test_another_attempt_moves_neither_id_nor_deadline() -> None:
    first = a_request(expires=60)
    second = next_attempt(first, key=NEW.fingerprint, now=NOW + 600, expires=60)
    assert (second.message_id, second.deadline) == (first.message_id, first.deadline)
    assert (second.attempt, second.key) == (2, NEW.fingerprint)
    assert second.expires - second.timestamp == 60_000
    late = next_attempt(first, key=first.key, now=NOW + 24 * 3600 - 10, expires=60)
    assert late.expires == first.deadline
    assert fixed_digest(second) == fixed_digest(first) == fixed_digest(late)


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b"other"},
        {"deadline": 3600.0},
        {"to_agent": "bob"},
        {"priority": 9},
        {"from_agent": "eve"},
    ],
)
def test_the_same_id_with_something_else_is_another_request(changed: dict[str, Any]) -> None:
    assert fixed_digest(a_request(**changed)) != fixed_digest(a_request())


# ---- results and acknowledgements ---------------------------------------------------------------


def a_result(request: RequestHead, **other: Any) -> ResultHead:
    fields: dict[str, Any] = {
        "message_id": f"msg_{'0' * 31}3",
        "status": "success",
        "executed_by": "bob",
        "executed_at": NOW + 1,
        "body": b"result",
        "key": BANK.fingerprint,
        "now": NOW + 2,
    }
    return result_head(request, **{**fields, **other})


def test_an_agent_signs_for_no_other_executor() -> None:
    trust = TrustList()
    trust.add_agent(ADA, "bank", "ada")
    for executor, said in (("ada", "opened"), ("bob", "wrong_sender")):
        made = a_result(a_request(), key=ADA.fingerprint, executed_by=executor)
        signed = sign_head(replace(made, from_agent="ada"), ADA)
        found = open_envelope(signed, ResultHead, trust, swarm="shop", bus=BUS, now=NOW)
        assert reason(found) == said


def test_a_result_answers_the_request_that_it_names() -> None:
    request = a_request()
    made = sign_head(a_result(request), BANK)
    found = open_envelope(made, ResultHead, TRUST, swarm="shop", bus=BUS, now=NOW)
    assert isinstance(found, OpenedEnvelope)
    assert found.head.in_reply_to == digest(request)
    assert (found.head.to_swarm, found.head.to_agent, found.head.from_swarm) == (
        *("shop", "ada", "bank"),
    )


# ---- registry entries ---------------------------------------------------------------------------


def test_a_registry_entry_is_opened_by_the_key_that_is_pinned() -> None:
    agents = (registered_agent("ada", ("translate",), 3), registered_agent("bob"))
    made = sign_head(an_entry(SHOP, agents=agents), SHOP)
    found = open_entry(made)
    assert isinstance(found, OpenedEnvelope)
    assert found.head.agents == agents
    assert found.head.public_keys() == {SHOP.fingerprint: SHOP.public_key}


def test_a_registry_entry_of_a_thousand_agents_fits() -> None:
    agents = tuple(
        registered_agent(f"haiku_worker_{number}", ("context_summary", "code_analysis"), number)
        for number in range(1000)
    )
    assert reason(open_entry(sign_head(an_entry(SHOP, agents=agents), SHOP))) == "opened"


def test_a_reader_that_pinned_a_fingerprint_finds_its_key_in_the_entry() -> None:
    made = sign_head(an_entry(SHOP), SHOP)
    assert claimed_keys(made) == {SHOP.fingerprint: SHOP.public_key}
    assert claimed_keys(bytes(300_000)) == {}
    assert claimed_keys(sign_head(a_request(), SHOP)) == {}


def test_in_a_rotation_the_entry_is_signed_by_the_new_and_the_old_key() -> None:
    made = sign_head(an_entry(NEW, SHOP), NEW, SHOP)
    found = open_entry(made, TrustList(shop=SHOP))
    assert isinstance(found, OpenedEnvelope)
    assert list(found.head.public_keys()) == [NEW.fingerprint, SHOP.fingerprint]
    assert found.key.public_key == SHOP.public_key  # the one that we trusted
    assert reason(open_entry(made, TrustList(shop=NEW))) == "opened"
    assert reason(open_entry(made, TrustList(shop=STRANGER))) == "unknown_key"


def test_in_a_rotation_both_signatures_must_fit() -> None:
    made = json.loads(sign_head(an_entry(NEW, SHOP), NEW, SHOP))
    for place in (0, 1):
        signatures = [dict(each) for each in made["signatures"]]
        signatures[place]["sig"] = b64encode(bytes(64)).decode()
        changed = msgspec.json.encode({**made, "signatures": signatures})
        assert reason(open_entry(changed)) == "signature_verification_failed"
    one = msgspec.json.encode({**made, "signatures": made["signatures"][1:]})
    assert reason(open_entry(one)) == "malformed"
    turned = msgspec.json.encode({**made, "signatures": made["signatures"][::-1]})
    assert reason(open_entry(turned)) == "malformed"


def test_a_swarm_cannot_list_a_key_that_it_does_not_have() -> None:
    stolen = head.encode(an_entry(SHOP, BANK))
    assert reason(open_entry(sign_bytes(stolen, SHOP, RegistryHead))) == "malformed"
    with pytest.raises(BadInput, match="sign it with these"):
        sign_head(an_entry(SHOP, BANK), SHOP)


def test_a_rotation_by_a_revoked_key_is_refused() -> None:
    trust = TrustList(shop=SHOP)
    trust.revoke(SHOP)
    made = sign_head(an_entry(STRANGER, SHOP), STRANGER, SHOP)
    assert reason(open_entry(made, trust)) == "revoked_key"


def test_two_swarms_cannot_share_an_entry() -> None:
    made = sign_head(an_entry(SHOP, BANK), SHOP, BANK)  # both have signed, and we trust both
    assert reason(open_entry(made)) == "wrong_sender"


def test_the_key_of_an_agent_signs_no_entry() -> None:
    trust = TrustList()
    trust.add_agent(ADA, "shop", "ada")
    assert reason(open_entry(sign_head(an_entry(ADA), ADA), trust)) == "wrong_sender"


def test_an_entry_for_another_bus_or_an_expired_one_is_refused() -> None:
    made = sign_head(an_entry(SHOP), SHOP)
    assert reason(open_entry(made, bus="bus_2")) == "wrong_bus"
    assert reason(open_entry(made, now=NOW + 15 * 60 + 31)) == "expired"
    assert reason(open_entry(made, now=NOW - 31)) == "future"


def test_an_agent_with_a_key_of_its_own_proves_that_it_has_it() -> None:
    ada = registered_agent("ada", swarm="shop", signer=ADA)
    found = open_entry(sign_head(an_entry(SHOP, agents=(ada,)), SHOP))
    assert isinstance(found, OpenedEnvelope)
    assert found.head.agent_keys() == {ADA.fingerprint: ("ada", ada.keys[0])}


def with_key(**changed: Any) -> RegisteredAgent:
    ada = registered_agent("ada", swarm="shop", signer=ADA)
    return replace(ada, keys=(replace(ada.keys[0], **changed),))


@pytest.mark.parametrize(
    "agent",
    [
        registered_agent("ada", swarm="bank", signer=ADA),
        replace(registered_agent("eve", swarm="shop", signer=ADA), agent="ada"),
        with_key(proof=""),
        with_key(public=""),
        with_key(public=signing.to_base64(STRANGER.public_key)),
        with_key(public=signing.to_base64(bytes(32))),
        replace(with_key(), keys=with_key().keys * 2),
        replace(with_key(), keys=(*with_key().keys, agent_key("shop", "ada", STRANGER))),
        registered_agent("ada", swarm="shop", signer=SHOP),
        registered_agent("\u202ea"),
        registered_agent("ada", ("",)),
        registered_agent("ada", ("a\nb",)),
        registered_agent("ada", load=-1),
    ],
)
def test_an_agent_with_a_key_that_it_does_not_have_is_refused(agent: RegisteredAgent) -> None:
    entry = an_entry(SHOP, agents=(agent,))
    assert reason(open_entry(sign_bytes(head.encode(entry), SHOP, RegistryHead))) == "malformed"
    with pytest.raises(BadInput):
        sign_head(entry, SHOP)


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": ()},
        {"keys": (signing.to_base64(SHOP.public_key),) * 2},
        {"keys": (signing.to_base64(bytes(32)),)},
        {"keys": ("",)},
        {"keys": (signing.to_base64(BANK.public_key),)},
        {"key": BANK.fingerprint},
        {"agents": (registered_agent("ada"), registered_agent("ada"))},
        {"version": 0},
        {"depth": -1},
    ],
)
def test_an_entry_with_wrong_keys_or_numbers_is_refused(changed: dict[str, Any]) -> None:
    entry = replace(an_entry(SHOP), **changed)
    assert reason(open_entry(sign_bytes(head.encode(entry), SHOP, RegistryHead))) == "malformed"


# ---- revocations --------------------------------------------------------------------------------


def open_revocation(data: bytes, trust: TrustList) -> str:
    return reason(open_envelope(data, RevocationHead, trust, bus=BUS, now=NOW))


def test_a_key_may_revoke_itself_and_say_so_twice() -> None:
    trust = TrustList(shop=SHOP)
    made = sign_head(a_revocation(SHOP, SHOP), SHOP)
    assert open_revocation(made, trust) == "opened"
    trust.revoke(SHOP)
    assert open_revocation(made, trust) == "opened"


def test_a_revocation_holds_on_every_bus_and_never_expires() -> None:
    made = sign_head(a_revocation(SHOP, SHOP), SHOP)
    found = open_envelope(made, RevocationHead, TRUST, bus="bus_2", now=NOW + 1e9)
    assert reason(found) == "opened"


def test_the_key_of_a_swarm_revokes_its_other_keys() -> None:
    assert open_revocation(sign_head(a_revocation(SHOP, ADA), SHOP), TRUST) == "opened"


def test_a_revoked_key_the_key_of_an_agent_or_of_another_swarm_revokes_no_other() -> None:
    trust = TrustList(shop=SHOP, bank=BANK)
    trust.add_agent(ADA, "shop", "ada")
    assert open_revocation(sign_head(a_revocation(ADA, SHOP), ADA), trust) == "wrong_sender"
    assert open_revocation(sign_head(a_revocation(ADA, ADA), ADA), trust) == "opened"
    assert open_revocation(sign_head(a_revocation(BANK, SHOP), BANK), trust) == "wrong_sender"
    assert open_revocation(sign_head(a_revocation(STRANGER, SHOP), STRANGER), trust) == (
        "unknown_key"
    )
    trust.revoke(SHOP)
    assert open_revocation(sign_head(a_revocation(SHOP, ADA), SHOP), trust) == "wrong_sender"


# ---- what is never sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"from_agent": "-x"},
        {"to_agent": ""},
        {"priority": 11},
        {"act": "order"},
        {"confidence": 1.5},
        {"citations": ("",)},
        {"message_id": "1"},
        {"timeout": 0.0},
        {"task_type": "a\ud800"},
    ],
)
def test_what_a_reader_would_refuse_is_not_signed(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        sign_head(a_request(**wrong), SHOP)


def test_a_head_is_signed_by_the_key_that_it_names() -> None:
    with pytest.raises(BadInput, match="sign it with these"):
        sign_head(a_request(), BANK)
    with pytest.raises(BadInput, match="sign it with these"):
        sign_head(a_request(), SHOP, BANK)


def test_a_confidence_of_one_is_the_number_one() -> None:
    found = open_request(sign_head(a_request(confidence=1), SHOP))
    assert isinstance(found, OpenedEnvelope)
    assert found.head.confidence == 1.0


def test_every_refusal_has_a_word_of_the_list() -> None:
    words = set(envelope.Reason.__args__)  # type: ignore[attr-defined]  # of a Literal
    assert {"signature_verification_failed", "unknown_key", "revoked_key", "expired"} <= words
