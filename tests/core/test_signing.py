"""Signatures: the vectors of DSSE, Wycheproof and ed25519-speccheck, and the names of keys."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from interlock.core import signing
from interlock.core.signing import KeySigner, fits, from_base64, signed_bytes
from interlock.errors import BadInput

DATA = Path(__file__).parent.parent / "data"
NEEDS_SSH_KEYGEN = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen (Debian: openssh-client) is missing"
)
EVERYTHING = bytes([1, *bytes(31)]) + bytes(32)
"""The signature that fits every message under the key 0100...00."""


def seeded(number: int) -> KeySigner:
    return KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def vectors(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def test_signed_bytes_are_those_of_the_protocol_page_of_dsse() -> None:
    made = signed_bytes("http://example.com/HelloWorld", b"hello world")
    assert made == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_are_of_bytes_and_an_empty_payload_counts() -> None:
    assert signed_bytes("ä", b"") == b"DSSEv1 2 \xc3\xa4 0 "


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_two_payloads_never_have_the_same_signed_bytes(
    one: tuple[str, bytes], other: tuple[str, bytes]
) -> None:
    assert (signed_bytes(*one) == signed_bytes(*other)) == (one == other)


def test_every_vector_of_wycheproof_has_its_verdict() -> None:
    seen = 0
    for group in vectors("wycheproof-ed25519.json")["testGroups"]:
        key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            fit = fits(key, bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"]))
            assert fit == (case["result"] == "valid"), case["tcId"]
            seen += 1
    assert seen == 151


def test_of_the_doubtful_signatures_only_those_of_the_owner_of_a_key_count() -> None:
    accepted = [
        number
        for number, case in enumerate(vectors("ed25519-speccheck.json"))
        if fits(*(bytes.fromhex(case[name]) for name in ("pub_key", "signature", "message")))
    ]
    # 2: a small-order R; 3: a mixed-order key and R.  Only the owner of a key can make either.
    assert accepted == [2, 3]


def test_there_are_fourteen_keys_of_small_order_and_none_of_them_counts() -> None:
    assert len(signing.SMALL_ORDER) == 14
    for key in signing.SMALL_ORDER:
        assert not fits(key, EVERYTHING, b"any message")
        with pytest.raises(BadInput, match="small order"):
            signing.require_public_key(key)


def test_without_the_refusal_one_signature_would_fit_every_message() -> None:
    loaded = signing._loaded(bytes([1, *bytes(31)]))
    loaded.verify(EVERYTHING, b"any message")
    loaded.verify(EVERYTHING, b"any other")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_public_key_has_32_bytes(size: int) -> None:
    assert not fits(bytes(size), bytes(64), b"")
    with pytest.raises(BadInput, match="32 bytes"):
        signing.require_public_key(b"\x02" * size)


def test_a_signature_fits_its_data_and_key_alone() -> None:
    one, other = seeded(1), seeded(2)
    signature = one.sign(b"data")
    assert fits(one.public_key, signature, b"data")
    assert not fits(one.public_key, signature, b"date")
    assert not fits(other.public_key, signature, b"data")
    assert not fits(one.public_key, signature[:-1], b"data")


def test_a_signer_shows_no_secret() -> None:
    one = seeded(1)
    assert repr(one) == f"KeySigner({one.fingerprint})"
    assert "0101" not in repr(vars(one))


# ---- names and encodings ------------------------------------------------------------------------


def test_a_fingerprint_is_the_one_that_ssh_keygen_printed() -> None:
    assert seeded(1).fingerprint == "SHA256:fe85JkIjo8VPe+XqXJGH5Mau1EMFdK1OdKvJUFicyA8"


@NEEDS_SSH_KEYGEN
def test_ssh_keygen_prints_the_same_fingerprint(tmp_path: Path) -> None:
    for number in range(1, 9):
        one = seeded(number)
        file = tmp_path / "key.pub"
        file.write_text(signing.public_line(one.public_key, "a comment") + "\n")
        printed = subprocess.run(
            ["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True
        ).stdout
        assert printed == f"256 {one.fingerprint} a comment (ED25519)\n"


def test_a_public_line_reads_back() -> None:
    key = seeded(3).public_key
    assert signing.read_public_line(signing.public_line(key)) == key
    assert signing.read_public_line(signing.public_line(key, "two words") + "\n") == key


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 !",
        "ssh-rsa AAAAB3NzaC1yc2E=",
        f"ssh-ed25519 {b64encode(signing.key_blob(bytes(31))).decode()}",
        f"ssh-ed25519 {b64encode(signing.key_blob(bytes([2] * 33))).decode()}",
        f"ssh-ed25519 {b64encode(signing.key_blob(bytes([2] * 32)) + b'x').decode()}",
        f"sk-ssh-ed25519@openssh.com {b64encode(signing.key_blob(bytes([2] * 32))).decode()}",
        signing.public_line(bytes(32)),
    ],
)
def test_other_lines_are_no_public_keys(line: str) -> None:
    with pytest.raises(BadInput):
        signing.read_public_line(line)


@pytest.mark.parametrize("text", ["", "SHA256:", "SHA256:" + "A" * 42, "MD5:" + "A" * 46])
def test_other_text_is_no_fingerprint(text: str) -> None:
    with pytest.raises(BadInput, match="fingerprint"):
        signing.require_fingerprint(text)


def test_a_fingerprint_is_returned_as_it_is() -> None:
    assert signing.require_fingerprint(seeded(1).fingerprint) == seeded(1).fingerprint


@pytest.mark.parametrize(
    "text", ["aGl=", "aGk", "aGk=\n", "aG k=", "aGk==", "a-_k", "äöüß", "===="]
)
def test_other_base64_of_the_same_bytes_is_refused(text: str) -> None:
    assert from_base64(text) is None


@given(st.binary())
def test_base64_reads_back(data: bytes) -> None:
    assert from_base64(signing.to_base64(data)) == data


@given(st.text(alphabet="ABab01+/=\n ", max_size=12))
def test_base64_has_one_text_for_the_same_bytes(text: str) -> None:
    data = from_base64(text)
    assert data is None or signing.to_base64(data) == text
