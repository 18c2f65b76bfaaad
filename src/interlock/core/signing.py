"""Signatures: Ed25519 over the encoding of DSSE 1.0.2, and the names of keys.

What is signed is never a payload alone:

    "DSSEv1" SP length(type) SP type SP length(payload) SP payload

The type is a part of it, so a signature under a result never counts under a request.  A reader
verifies a payload, then parses those same bytes; nothing is encoded again to be verified.

A public key is 32 bytes.  Its name is its fingerprint, as ``ssh-keygen -lf`` prints it:
``SHA256:`` and the digest of its OpenSSH encoding.  14 encodings are points of small order: under
one of them a single signature fits every message, so they are refused everywhere.

``cryptography`` takes 25 ms to import, so it is imported where a key is used.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from interlock.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KEY_TYPE = b"ssh-ed25519"
KEY_SIZE = 32
SIGNATURE_SIZE = 64
FINGERPRINT_MARK = "SHA256:"
FINGERPRINT_LENGTH = 50

_LINE_WORDS = 2
_SIGN_BIT = 0x80


def _small_order() -> frozenset[bytes]:
    """Both signs of the seven values of y that are, or reduce to, a point of small order."""
    p = 2**255 - 19
    low = [y.to_bytes(KEY_SIZE, "little") for y in (0, 1, p - 1, p, p + 1)]
    low.append(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))
    low.append(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))
    return frozenset((*low, *(each[:-1] + bytes([each[-1] | _SIGN_BIT]) for each in low)))


SMALL_ORDER = _small_order()
"""The encodings of public keys that count for no one."""


class Signer(Protocol):
    """A private key that signs: from a file, or inside of an ssh-agent."""

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the public key."""

    @property
    def fingerprint(self) -> str:
        """The name of the key."""

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of a signature over exactly this data."""


class KeySigner:
    """A signer with the private key in memory; it shows only its fingerprint."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """The signature over this data; equal data has equal signatures."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"KeySigner({self.fingerprint})"


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """What is signed for a payload of this type (DSSE: the pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def require_public_key(public_key: bytes) -> bytes:
    """Return a public key if it can count for its owner alone."""
    if len(public_key) != KEY_SIZE:
        raise BadInput(f"an Ed25519 public key has {KEY_SIZE} bytes, not {len(public_key)}")
    if public_key in SMALL_ORDER:
        raise BadInput(
            "this public key is a point of small order, under which anyone can sign;"
            " ask its owner for another key"
        )
    return public_key


def fits(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether this is the signature of the key over the data; never for a small-order key."""
    if len(public_key) != KEY_SIZE or len(signature) != SIGNATURE_SIZE or public_key in SMALL_ORDER:
        return False
    from cryptography.exceptions import InvalidSignature

    try:
        _loaded(public_key).verify(signature, data)
    except InvalidSignature:
        return False
    return True


@lru_cache(256)
def _loaded(public_key: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public_key)


# ---- names and encodings ------------------------------------------------------------------------


def fingerprint(public_key: bytes) -> str:
    """The name of a public key, as ``ssh-keygen -lf`` prints it."""
    digest = b64encode(sha256(key_blob(public_key)).digest())
    return FINGERPRINT_MARK + digest.decode().rstrip("=")


def require_fingerprint(text: str) -> str:
    """Return the text if it is a fingerprint."""
    bare = text.removeprefix(FINGERPRINT_MARK)
    if len(text) != FINGERPRINT_LENGTH or bare == text or from_base64(f"{bare}=") is None:
        raise BadInput(
            f"{text[:60]!r} is not the fingerprint of a key;"
            " give it as 'interlock key list' prints it, SHA256: and 43 characters"
        )
    return text


def key_blob(public_key: bytes) -> bytes:
    """A public key as OpenSSH encodes it."""
    return ssh_string(KEY_TYPE) + ssh_string(public_key)


def ssh_string(data: bytes) -> bytes:
    """Bytes as OpenSSH writes them: behind their length."""
    return len(data).to_bytes(4, "big") + data


def public_line(public_key: bytes, comment: str = "") -> str:
    """A public key as a line of ``authorized_keys``."""
    return f"{KEY_TYPE.decode()} {to_base64(key_blob(public_key))} {comment}".rstrip()


def read_public_line(text: str) -> bytes:
    """The public key of such a line; BadInput if it is none that counts."""
    words = text.split(maxsplit=_LINE_WORDS)
    blob = from_base64(words[1]) if len(words) >= _LINE_WORDS else None
    key = (blob or b"")[-KEY_SIZE:]
    if words[:1] != [KEY_TYPE.decode()] or len(key) != KEY_SIZE or blob != key_blob(key):
        raise BadInput(
            f"{text[:60]!r} is not an Ed25519 public key; give a line like"
            " 'ssh-ed25519 AAAA...', or make a key with 'interlock key new NAME'"
        )
    return require_public_key(key)


def to_base64(data: bytes) -> str:
    """Bytes in base64, with padding."""
    return b64encode(data).decode()


def from_base64(text: str) -> bytes | None:
    """The bytes that this text stands for; None unless it is their one base64 text.

    A decoder takes several texts for the same bytes: with foreign characters, or with other bits
    in the last one.
    """
    try:
        data = b64decode(text, validate=True)
    except ValueError:  # also where the text is not ASCII
        return None
    return data if b64encode(data).decode() == text else None
