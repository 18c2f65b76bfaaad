"""Two swarms with a key each, and heads between them, for the tests of envelopes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from interlock.core import signing
from interlock.core.signing import KeySigner
from interlock.nouns.swarms.envelope import EnvelopeRefused, OpenedEnvelope, TrustedKey
from interlock.nouns.swarms.head import (
    ENTRY_EXPIRES,
    Head,
    ListedKey,
    RegisteredAgent,
    RegistryHead,
    RequestHead,
    RevocationHead,
    milliseconds,
    request_head,
)

NOW = 1_800_000_000.0
BUS = "bus_1"
BODY = b'{"text":"hi"}'


def signer(number: int) -> KeySigner:
    return KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


SHOP, BANK, NEW, STRANGER, ADA = (signer(number) for number in range(1, 6))


class TrustList:
    """What a reader trusts: keys of swarms and agents by fingerprint."""

    def __init__(self, **swarms: KeySigner) -> None:
        self.keys = {
            key.fingerprint: TrustedKey(public_key=key.public_key, swarm=swarm)
            for swarm, key in swarms.items()
        }

    def __call__(self, fingerprint: str) -> TrustedKey | None:
        return self.keys.get(fingerprint)

    def revoke(self, key: KeySigner) -> None:
        known = self.keys[key.fingerprint]
        self.keys[key.fingerprint] = TrustedKey(
            public_key=known.public_key, swarm=known.swarm, agent=known.agent, revoked=True
        )

    def add_agent(self, key: KeySigner, swarm: str, agent: str) -> None:
        self.keys[key.fingerprint] = TrustedKey(public_key=key.public_key, swarm=swarm, agent=agent)


def sign_bytes(payload: bytes, by: KeySigner = SHOP, kind: type[Head] = RequestHead) -> bytes:
    """An envelope around any bytes, with a signature that fits."""
    data = signing.signed_bytes(kind.payload_type, payload)
    return msgspec.json.encode(
        {
            "payloadType": kind.payload_type,
            "payload": b64encode(payload).decode(),
            "signatures": [{"keyid": by.fingerprint, "sig": b64encode(by.sign(data)).decode()}],
        }
    )


def a_request(**other: Any) -> RequestHead:
    fields: dict[str, Any] = {
        "message_id": f"msg_{'0' * 31}1",
        "request_id": f"req_{'0' * 31}2",
        "from_swarm": "shop",
        "from_agent": "ada",
        "to_swarm": "bank",
        "to_agent": "can:translate",
        "task_type": "translate",
        "body": BODY,
        "key": SHOP.fingerprint,
        "bus": BUS,
        "now": NOW,
    }
    return request_head(**{**fields, **other})


def an_entry(
    *signers: KeySigner,
    agents: tuple[RegisteredAgent, ...] = (),
    version: int = 1,
    swarm: str = "shop",
) -> RegistryHead:
    return RegistryHead(
        from_swarm=swarm,
        key=signers[0].fingerprint,
        keys=tuple(
            ListedKey(
                public=signing.to_base64(each.public_key),
                until=0 if each is signers[0] else milliseconds(NOW + 3600),
            )
            for each in signers
        ),
        version=version,
        agents=agents,
        depth=0,
        timestamp=milliseconds(NOW),
        expires=milliseconds(NOW + ENTRY_EXPIRES),
        bus=BUS,
    )


def a_revocation(signed_by: KeySigner, revokes: KeySigner) -> RevocationHead:
    return RevocationHead(
        from_swarm="shop",
        key=signed_by.fingerprint,
        timestamp=milliseconds(NOW),
        revokes=revokes.fingerprint,
        reason="lost",
    )


def reason(found: OpenedEnvelope[Any] | EnvelopeRefused) -> str:
    """The word of a refusal, or ``opened``."""
    return found.reason if isinstance(found, EnvelopeRefused) else "opened"
