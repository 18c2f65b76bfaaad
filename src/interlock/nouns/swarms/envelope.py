"""Envelopes: DSSE around a head, signed with Ed25519; how one is made, and how one is opened.

    {"payloadType":TYPE,"payload":BASE64(head),"signatures":[{"keyid":FINGERPRINT,"sig":BASE64}]}

``open_envelope`` refuses in this order, and each step relies on those before it:

    length      before anything is read
    envelope    the one text of its fields: no other field, blank or base64 counts
    type        the kind of head that the caller expects
    key         by its fingerprint, from the caller's own list; never from the message
    signature   over the bytes of the head
    head        decoded from those same bytes; encoded again it must give them
    sender      the swarm, or the agent, that the key belongs to
    audience    the reader's swarm and bus
    time        with 30 s for clocks that differ

What follows belongs to the caller, in its commit: trust at its revision, and the mark against
replay.  Only then the body is read (``body_refusal``).

A refusal is a value, with a word that quarantine and metrics use.  ``head`` is in it once the
signature fits; before that nothing in the message says who sent it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from interlock.core import codec, signing
from interlock.core.signing import Signer
from interlock.errors import BadInput, TooLarge
from interlock.nouns.swarms.head import (
    BODY_LIMIT,
    KEYS_LIMIT,
    LONGEST_DEADLINE,
    REGISTRY_LIMIT,
    BodyHead,
    BusHead,
    Fingerprint,
    Head,
    MessageHead,
    RegistryHead,
    ResultHead,
    RevocationHead,
    encode,
    usable_key,
)

SKEW = 30.0
"""Seconds that two clocks may differ."""

Reason: TypeAlias = Literal[
    "too_large",
    "malformed",
    "wrong_type",
    "unknown_key",
    "revoked_key",
    "signature_verification_failed",
    "wrong_sender",
    "wrong_audience",
    "wrong_bus",
    "future",
    "expired",
    "deadline_too_far",
    "body_mismatch",
    "wrong_request",
]

H = TypeVar("H", bound=Head)


class TrustedKey(Struct, frozen=True, kw_only=True):
    """A key on the reader's own list: of a swarm, or of one of its agents.

    A reader need not have the public key of a revoked one.
    """

    public_key: bytes
    swarm: str
    agent: str = ""
    revoked: bool = False


TrustedKeyOf: TypeAlias = Callable[[str], TrustedKey | None]
"""The key of a fingerprint, if it is on the reader's list."""


class OpenedEnvelope(Struct, Generic[H], frozen=True, kw_only=True):
    """A head whose signature, sender, audience and time are right; ``digest`` is its SHA-256."""

    head: H
    digest: str
    key: TrustedKey


class EnvelopeRefused(Struct, frozen=True, kw_only=True):
    """Why an envelope or a body does not count; ``key`` is the fingerprint that it claims."""

    reason: Reason
    detail: str
    key: str = ""
    head: Head | None = None


class _Signature(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keyid: Fingerprint
    sig: str


class _Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    payloadType: str  # noqa: N815 - as DSSE writes it
    payload: str
    signatures: Annotated[tuple[_Signature, ...], Meta(min_length=1, max_length=KEYS_LIMIT)]


class _Bytes(Struct, frozen=True, kw_only=True):
    """An envelope with its base64 decoded."""

    kind: str
    payload: bytes
    signatures: dict[str, bytes]


_decode = codec.Decoder(_Envelope)


def sign_head(head: Head, *signers: Signer) -> bytes:
    """The envelope of a head, signed by its key; a registry entry by each key that it lists.

    What a reader would refuse by itself is refused here: BadInput, or TooLarge.
    """
    keys = tuple(signer.fingerprint for signer in signers)
    try:
        payload = encode(head)
        again = msgspec.json.decode(payload, type=type(head))
    except codec.UNREADABLE as error:
        raise BadInput(f"the head of the message is wrong: {error}; correct it") from None
    fault = again.fault() or ("" if encode(again) == payload else "a number is of another kind")
    if fault:
        raise BadInput(f"the head of the message is wrong: {fault}; correct it")
    if keys != head.listed_keys():
        raise BadInput(f"the head names the keys {head.listed_keys()}; sign it with these")
    data = signing.signed_bytes(head.payload_type, payload)
    signatures = tuple(
        _Signature(keyid=signer.fingerprint, sig=signing.to_base64(signer.sign(data)))
        for signer in signers
    )
    made = codec.encode(
        _Envelope(
            payloadType=head.payload_type,
            payload=signing.to_base64(payload),
            signatures=signatures,
        )
    )
    if len(made) > head.limit:
        raise TooLarge(
            f"the envelope has {len(made)} bytes; {head.limit} are allowed: shorten its fields"
        )
    return made


def open_envelope(
    data: bytes,
    kind: type[H],
    trusted_key_of: TrustedKeyOf,
    *,
    bus: str,
    now: float,
    swarm: str = "",
) -> OpenedEnvelope[H] | EnvelopeRefused:
    """The head of an envelope of this kind, or why it does not count.

    ``swarm`` is the reader, for messages; ``bus`` is where the envelope was found.
    """
    verified = _verified(data, kind, trusted_key_of)
    if isinstance(verified, EnvelopeRefused):
        return verified
    envelope, keys = verified
    claimed = next(iter(envelope.signatures))
    head = _head(envelope.payload, kind)
    if head is None:
        return _refused(
            "malformed", "the signed bytes are not the one text of such a head", claimed
        )
    found = (
        _malformed(head, envelope)
        or _wrong_sender(head, keys)
        or _misdirected(head, swarm, bus)
        or _untimely(head, now)
    )
    if found is not None:
        reason, detail = found
        return EnvelopeRefused(reason=reason, detail=detail, key=claimed, head=head)
    key = next(iter(keys.values()))
    return OpenedEnvelope(head=head, digest=sha256(envelope.payload).hexdigest(), key=key)


def too_large(size: int, kind: type[Head]) -> EnvelopeRefused:
    """The refusal of an envelope that has more bytes than one of this kind may have."""
    return _refused("too_large", f"the envelope has {size} bytes, above {kind.limit}")


def body_refusal(head: BodyHead, body: bytes, size: int = 0) -> EnvelopeRefused | None:
    """Why this is not the body that was signed for; None if it is.

    ``size`` is that of a body which was not read, since it is larger than was signed.
    """
    detail, size = "", max(size, len(body))
    if size != head.source_size:
        detail = f"the body has {size} bytes, and {head.source_size} were signed"
    elif sha256(body).hexdigest() != head.source_hash:
        detail = "the body has another hash than was signed"
    if not detail:
        return None
    return EnvelopeRefused(reason="body_mismatch", detail=detail, key=head.key, head=head)


def claimed_signers(data: bytes, kind: type[Head]) -> tuple[str, ...]:
    """The fingerprints that an envelope of this kind names, to look up what we know of them.

    Nothing is verified yet; empty if it is no such envelope.
    """
    envelope = _unpacked(data) if len(data) <= kind.limit else None
    known = envelope is not None and envelope.kind == kind.payload_type
    return tuple(envelope.signatures) if known and envelope is not None else ()


def claimed_sender(data: bytes, kind: type[Head]) -> str:
    """The swarm that an envelope of this kind claims to be from, to look that up again.

    Nothing is verified yet; empty if it is no such envelope.
    """
    envelope = _unpacked(data) if len(data) <= kind.limit else None
    if envelope is None or envelope.kind != kind.payload_type:
        return ""
    head = _head(envelope.payload, kind)
    return "" if head is None else head.from_swarm


def claimed_digest(data: bytes, kind: type[Head]) -> str:
    """The SHA-256 of the head in an envelope of this kind, to compare it with an accepted one.

    Nothing is verified yet; empty if it is no such envelope.
    """
    envelope = _unpacked(data) if len(data) <= kind.limit else None
    if envelope is None or envelope.kind != kind.payload_type:
        return ""
    return sha256(envelope.payload).hexdigest()


def claimed_keys(data: bytes) -> dict[str, bytes]:
    """The public keys in a registry entry that nothing has verified yet, by their fingerprints.

    For a reader that has pinned a fingerprint and never saw its key: it takes the key of that very
    fingerprint, and opens the entry with it.  Any other use would trust the message itself.
    """
    if len(data) > REGISTRY_LIMIT:
        return {}
    envelope = _unpacked(data)
    if envelope is None or envelope.kind != RegistryHead.payload_type:
        return {}
    head = _head(envelope.payload, RegistryHead)
    found = () if head is None else (usable_key(key.public) for key in head.keys)
    return {signing.fingerprint(key): key for key in found if key is not None}


# ---- the steps ----------------------------------------------------------------------------------


def _verified(
    data: bytes, kind: type[Head], trusted_key_of: TrustedKeyOf
) -> tuple[_Bytes, dict[str, TrustedKey]] | EnvelopeRefused:
    """The parts of an envelope, and the keys on our list whose signatures fit."""
    if len(data) > kind.limit:
        return too_large(len(data), kind)
    envelope = _unpacked(data)
    if envelope is None:
        return _refused("malformed", "it is not the one text of an envelope")
    claimed = next(iter(envelope.signatures))
    if envelope.kind != kind.payload_type:
        return _refused("wrong_type", f"it is of the type {envelope.kind[:100]!r}", claimed)
    trusted, revoked = _trusted(envelope, trusted_key_of)
    keys = trusted or (revoked if kind is RevocationHead else {})
    if not keys:
        reason: Reason = "revoked_key" if revoked else "unknown_key"
        said = "its key was revoked" if revoked else "its key is not on our list"
        return _refused(reason, said, claimed)
    if not _all_fit(envelope, {name: key.public_key for name, key in keys.items()}):
        return _refused("signature_verification_failed", "the signature does not fit", claimed)
    return envelope, keys


def _unpacked(data: bytes) -> _Bytes | None:
    """The parts of an envelope; None unless the data is its one text."""
    try:
        found = _decode.decode(data)
    except codec.UNREADABLE:
        return None
    if codec.encode(found) != data:
        return None
    payload = signing.from_base64(found.payload)
    signatures = {each.keyid: signing.from_base64(each.sig) for each in found.signatures}
    known = {name: each for name, each in signatures.items() if each is not None}
    if payload is None or len(known) != len(found.signatures):
        return None
    return _Bytes(kind=found.payloadType, payload=payload, signatures=known)


def _trusted(
    envelope: _Bytes, trusted_key_of: TrustedKeyOf
) -> tuple[dict[str, TrustedKey], dict[str, TrustedKey]]:
    """The signing keys that are on our list, and those of them that are revoked."""
    trusted: dict[str, TrustedKey] = {}
    revoked: dict[str, TrustedKey] = {}
    for name in envelope.signatures:
        key = trusted_key_of(name)
        if key is not None and key.revoked:
            revoked[name] = key
        elif key is not None and signing.fingerprint(key.public_key) == name:
            trusted[name] = key
    return trusted, revoked


def _all_fit(envelope: _Bytes, keys: dict[str, bytes]) -> bool:
    data = signing.signed_bytes(envelope.kind, envelope.payload)
    return all(signing.fits(key, envelope.signatures[name], data) for name, key in keys.items())


def _head(payload: bytes, kind: type[H]) -> H | None:
    """The head that these bytes are; None unless they are its one text."""
    try:
        head = msgspec.json.decode(payload, type=kind)
        return head if encode(head) == payload else None
    except codec.UNREADABLE:
        return None


def _malformed(head: Head, envelope: _Bytes) -> tuple[Reason, str] | None:
    if fault := head.fault():
        return "malformed", fault
    if head.listed_keys() != tuple(envelope.signatures):
        return "malformed", "it is not signed by exactly the keys that it names"
    # The keys that we do not know yet: the entry names them, and a key that we know signed that.
    if isinstance(head, RegistryHead) and not _all_fit(envelope, head.public_keys()):
        return "signature_verification_failed", "a key that it names did not sign it"
    if isinstance(head, BodyHead) and head.source_size > BODY_LIMIT:
        return "too_large", f"its body has {head.source_size} bytes, above {BODY_LIMIT}"
    return None


def _wrong_sender(head: Head, keys: dict[str, TrustedKey]) -> tuple[Reason, str] | None:
    for name, key in keys.items():
        if key.swarm != head.from_swarm:
            return "wrong_sender", f"its key belongs to the swarm {key.swarm}"
        if isinstance(head, ResultHead):
            may = key.agent in ("", head.from_agent) and key.agent in ("", head.executed_by)
        elif isinstance(head, MessageHead):
            may = key.agent in ("", head.from_agent)
        elif isinstance(head, RevocationHead):
            may = name == head.revokes or not (key.agent or key.revoked)
        else:
            may = not key.agent
        if not may:
            return "wrong_sender", "its key may not sign this"
    return None


def _misdirected(head: Head, swarm: str, bus: str) -> tuple[Reason, str] | None:
    if isinstance(head, MessageHead) and head.to_swarm != swarm:
        return "wrong_audience", f"it is for the swarm {head.to_swarm}"
    if isinstance(head, BusHead) and head.bus != bus:
        return "wrong_bus", "it was signed for another bus"
    return None


def _untimely(head: Head, now: float) -> tuple[Reason, str] | None:
    if not isinstance(head, BusHead):
        return None
    ahead, late = head.timestamp / 1000 - now, now - head.expires / 1000
    if ahead > SKEW:
        return "future", f"it was written {ahead:.0f} s from now; compare the clocks"
    if late > SKEW:
        return "expired", f"it expired {late:.0f} s ago"
    if isinstance(head, MessageHead) and head.deadline / 1000 - now > LONGEST_DEADLINE + SKEW:
        return "deadline_too_far", "its deadline is further away than we remember messages"
    return None


def _refused(reason: Reason, detail: str, key: str = "") -> EnvelopeRefused:
    return EnvelopeRefused(reason=reason, detail=detail, key=key)
