"""Keys inside of an ssh-agent, which signs and never gives a private key away.

The agent of ``SSH_AUTH_SOCK`` signs any bytes with a plain Ed25519 key, and the signature is the
one that the key itself would make.  A key on a security token (``sk-...``) signs another structure,
with a counter in it, so it is refused.

The protocol is that of draft-ietf-sshm-ssh-agent: one message out, one message back, each behind
its length.  An agent that sends too much, nothing, or something else ends the call with an error.
"""

from __future__ import annotations

import os
import socket
import time

from interlock.core import signing
from interlock.core.safe_text import printable
from interlock.core.signing import ssh_string
from interlock.errors import NotAllowed

SOCKET = "SSH_AUTH_SOCK"
TIME_LIMIT = 10.0
"""Seconds for one answer of an agent; a person may have to confirm a signature."""

_LARGEST = 1 << 18
_MOST_KEYS = 2048
_REQUEST_IDENTITIES, _IDENTITIES = 11, 12
_SIGN_REQUEST, _SIGN_RESPONSE = 13, 14
_KEY_TYPE_ON_TOKEN = b"sk-ssh-ed25519@openssh.com"
_LENGTH = 4


class _Malformed(Exception):
    """An agent that does not speak its protocol."""


class AgentSigner:
    """A signer whose private key is in an ssh-agent; each signature is a call of the agent."""

    def __init__(self, path: str, public_key: bytes, time_limit: float = TIME_LIMIT) -> None:
        self._path = path
        self._limit = time_limit
        self.public_key = public_key
        self.fingerprint = signing.fingerprint(public_key)

    def sign(self, data: bytes) -> bytes:
        """The signature over this data; NotAllowed if the agent does not make it."""
        key = signing.key_blob(self.public_key)
        asked = ssh_string(key) + ssh_string(data) + bytes(4)
        answer = _ask(self._path, _SIGN_REQUEST, asked, _SIGN_RESPONSE, self._limit)
        try:
            kind, signature = _strings(_strings(answer, 1)[0], 2)
        except _Malformed:
            raise _wrong(self._path) from None
        if kind != signing.KEY_TYPE or not signing.fits(self.public_key, signature, data):
            raise _wrong(self._path)
        return signature

    def __repr__(self) -> str:
        return f"AgentSigner({self.fingerprint})"


def agent_signer(fingerprint: str, time_limit: float = TIME_LIMIT) -> AgentSigner:
    """The key with this fingerprint in the agent of ``SSH_AUTH_SOCK``."""
    signing.require_fingerprint(fingerprint)
    path = _path()
    for blob in _blobs(path, time_limit):
        if _fingerprint(blob) != fingerprint:
            continue
        if blob.startswith(ssh_string(_KEY_TYPE_ON_TOKEN)):
            raise NotAllowed(
                f"{fingerprint} is a key on a security token, which signs something else than"
                " Interlock verifies; use a plain Ed25519 key: interlock key new NAME"
            )
        key = blob[-signing.KEY_SIZE :]
        if blob != signing.key_blob(key):
            raise NotAllowed(
                f"{fingerprint} is a key of another kind; Interlock signs with Ed25519:"
                " make a key with 'interlock key new NAME'"
            )
        return AgentSigner(path, signing.require_public_key(key), time_limit)
    raise NotAllowed(
        f"the ssh-agent does not have the key {fingerprint};"
        " add it with 'ssh-add FILE', and look with 'ssh-add -l'"
    )


def agent_keys(time_limit: float = TIME_LIMIT) -> list[str]:
    """The fingerprints of the agent's keys that can sign for Interlock."""
    plain = ssh_string(signing.KEY_TYPE)
    return [_fingerprint(blob) for blob in _blobs(_path(), time_limit) if blob.startswith(plain)]


def _path() -> str:
    path = os.environ.get(SOCKET, "")
    if not path:
        raise NotAllowed(
            f"there is no ssh-agent: {SOCKET} is not set;"
            ' start one with: eval "$(ssh-agent)", then add the key with ssh-add'
        )
    return path


def _fingerprint(blob: bytes) -> str:
    from hashlib import sha256

    text = signing.to_base64(sha256(blob).digest())
    return signing.FINGERPRINT_MARK + text.rstrip("=")


def _blobs(path: str, time_limit: float) -> list[bytes]:
    answer = _ask(path, _REQUEST_IDENTITIES, b"", _IDENTITIES, time_limit)
    count, rest = int.from_bytes(answer[:_LENGTH], "big"), answer[_LENGTH:]
    if len(answer) < _LENGTH or count > _MOST_KEYS:
        raise _wrong(path)
    try:
        return _strings(rest, 2 * count)[::2]  # every other one is a comment
    except _Malformed:
        raise _wrong(path) from None


def _ask(path: str, kind: int, content: bytes, answer: int, time_limit: float) -> bytes:
    """One message to the agent, and the content of its answer of the expected kind."""
    ends = time.monotonic() + time_limit
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(time_limit)
            agent.connect(path)
            agent.sendall(ssh_string(bytes([kind]) + content))
            size = int.from_bytes(_receive(agent, _LENGTH, ends), "big")
            if not 0 < size <= _LARGEST:
                raise _wrong(path)
            message = _receive(agent, size, ends)
    except TimeoutError:
        raise NotAllowed(
            f"the ssh-agent at {printable(path)} did not answer within {time_limit:g} s;"
            " confirm the signature if it asks for that, or start it again"
        ) from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise NotAllowed(
            f"the ssh-agent at {printable(path)} cannot be used: {what.lower()};"
            f" start one, and see that {SOCKET} names its socket"
        ) from None
    if message[0] != answer:
        raise NotAllowed(
            f"the ssh-agent at {printable(path)} refused; unlock it (ssh-add -X), confirm the"
            " signature if it asks for that, and see with 'ssh-add -l' that it has the key"
        )
    return message[1:]


def _receive(agent: socket.socket, size: int, ends: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        agent.settimeout(left)
        part = agent.recv(size - len(found))
        if not part:
            raise ConnectionError("it ended the connection")
        found += part
    return bytes(found)


def _strings(data: bytes, count: int) -> list[bytes]:
    """This number of strings, one after the other, and nothing else."""
    found: list[bytes] = []
    at = 0
    for _ in range(count):
        start = at + _LENGTH
        at = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or at > len(data):
            raise _Malformed
        found.append(data[start:at])
    if at != len(data):
        raise _Malformed
    return found


def _wrong(path: str) -> NotAllowed:
    return NotAllowed(
        f"what listens at {printable(path)} does not answer as an ssh-agent does;"
        f" see that {SOCKET} names the socket of one"
    )
