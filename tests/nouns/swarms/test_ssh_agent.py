"""Keys inside of an ssh-agent: a real one, and ones that misbehave."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.nouns.swarms.swarm_homes import Swarms

import interlock
from interlock.core import signing
from interlock.core.signing import KeySigner, ssh_string
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.requests.serving import answer_claim
from interlock.nouns.swarms import key_files
from interlock.nouns.swarms.results import SwarmRegistered
from interlock.nouns.swarms.ssh_agent import agent_keys, agent_signer
from interlock.steps import drive

REAL = all(map(shutil.which, ("ssh-agent", "ssh-add", "ssh-keygen")))
SIGNER = KeySigner(Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32))
BLOB = signing.key_blob(SIGNER.public_key)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with TemporaryDirectory(prefix="agent") as made:
        yield Path(made)


@pytest.fixture
def real_agent(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if not REAL:
        pytest.skip("ssh-agent (Debian: openssh-client) is missing")
    path = short / "socket"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    agent.stdout.readline()  # it listens
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    try:
        yield short
    finally:
        agent.terminate()
        agent.wait()
        agent.stdout.close()


def run(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_real_agent_signs_what_the_file_would_sign(
    real_agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(real_agent / "keys"))
    made = key_files.create("ops")
    run("ssh-add", "-q", made.path)
    found = key_files.signer(made.fingerprint)
    assert found.fingerprint == made.fingerprint
    assert found.sign(b"data") == key_files.load("ops").sign(b"data")
    assert found.sign(b"x" * 200_000) == key_files.load("ops").sign(b"x" * 200_000)
    assert agent_keys() == [made.fingerprint]
    assert repr(found) == f"AgentSigner({made.fingerprint})"


def test_a_key_of_another_kind_is_no_signer(real_agent: Path) -> None:
    run("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", real_agent / "ecdsa")
    run("ssh-add", "-q", real_agent / "ecdsa")
    printed = run("ssh-keygen", "-lf", real_agent / "ecdsa").split()[1]
    with pytest.raises(NotAllowed, match="another kind"):
        agent_signer(printed)
    assert agent_keys() == []


def test_a_key_that_the_agent_forgot_signs_no_more(
    real_agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(real_agent / "keys"))
    made = key_files.create("ops")
    run("ssh-add", "-q", made.path)
    found = agent_signer(made.fingerprint)
    run("ssh-add", "-q", "-D")
    with pytest.raises(NotAllowed, match="refused"):
        found.sign(b"data")
    with pytest.raises(NotAllowed, match="does not have the key"):
        agent_signer(made.fingerprint)


def test_without_an_agent_the_error_says_how_to_start_one(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(NotAllowed, match="ssh-agent"):
        agent_signer(SIGNER.fingerprint)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(short / "nothing"))
    with pytest.raises(NotAllowed, match="cannot be used"):
        agent_signer(SIGNER.fingerprint)
    with pytest.raises(BadInput, match="fingerprint"):
        agent_signer("SHA256:short")


# ---- a swarm whose key is in an agent -----------------------------------------------------------


@pytest.fixture
def shop(real_agent: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Swarms, Path]]:
    """Shop, whose key is in an agent alone, and bank."""
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(real_agent / "keys"))
    made = key_files.create("shop")
    hidden = real_agent / "hidden"
    os.rename(made.path, hidden)
    run("ssh-add", "-q", hidden)
    with Swarms() as swarms:
        bank, home = swarms.register("bank"), swarms.home("shop")
        done = home.swarms.register("shop", bus="memory:bus", key=made.fingerprint)
        assert isinstance(done, SwarmRegistered), done
        home.swarms.allow("bank", key=bank.fingerprint)
        swarms.homes["bank"].swarms.allow("shop", key=made.fingerprint)
        yield swarms, hidden


def test_a_swarm_whose_key_is_in_an_agent_asks_and_gets_its_answer(
    shop: tuple[Swarms, Path],
) -> None:
    home, bank = shop[0].homes["shop"], shop[0].homes["bank"]
    sent = home.requests.send("bank", "can:sum", [1])
    assert isinstance(sent, interlock.RequestSent)
    bank.requests.tend()
    claimed = bank.tasks.next(can=["can:sum"])
    assert isinstance(claimed, interlock.Claimed)
    drive(answer_claim(bank.context, claimed, "success", b"1"), bank.store)
    home.requests.tend()
    assert isinstance(home.requests.result(sent.request), interlock.RequestAnswered)


def test_an_agent_that_is_gone_stops_what_is_signed_and_nothing_else(
    shop: tuple[Swarms, Path], caplog: pytest.LogCaptureFixture
) -> None:
    swarms, hidden = shop
    home, bank = swarms.homes["shop"], swarms.homes["bank"]
    asked = bank.requests.send("shop", "can:sum", [1])
    assert isinstance(asked, interlock.RequestSent)
    home.requests.tend()
    claimed = home.tasks.next(can=["can:sum"])
    assert isinstance(claimed, interlock.Claimed)
    assert home.requests.send("bank", "can:sum", [2])
    run("ssh-add", "-q", "-D")
    with pytest.raises(NotAllowed, match=r"ssh-add -X.*ssh-add -l"):
        home.requests.send("bank", "can:sum", [2])
    done = drive(answer_claim(home.context, claimed, "success", b"1"), home.store)
    assert isinstance(done, interlock.TaskCompleted)
    bank.requests.send("shop", "can:sum", [3])
    home.requests.tend()
    assert len(home.requests.list(received=True)) == 2
    assert isinstance(bank.requests.result(asked.request), interlock.RequestOpen)
    assert "waits for a key" in caplog.text
    run("ssh-add", "-q", hidden)
    home.requests.tend()
    bank.requests.tend()
    found = bank.requests.result(asked.request)
    assert isinstance(found, interlock.RequestAnswered)
    assert (found.result, found.executed_by) == (1, "shop-bot")


def test_an_agent_that_was_started_again_signs_again(
    shop: tuple[Swarms, Path], real_agent: Path
) -> None:
    swarms, home = shop[0], shop[0].homes["shop"]
    assert home.requests.send("bank", "can:sum", [1])
    (real_agent / "socket").rename(real_agent / "away")
    with pytest.raises(NotAllowed, match=r"cannot be used.*SSH_AUTH_SOCK names its socket"):
        home.requests.send("bank", "can:sum", [2])
    assert "cannot be used" in swarms.unsynced("shop").trouble
    (real_agent / "away").rename(real_agent / "socket")
    assert home.requests.send("bank", "can:sum", [2])
    assert swarms.sync("shop").trouble == ""


# ---- agents that misbehave ----------------------------------------------------------------------


@contextmanager
def answering(
    path: Path, answer: Callable[[bytes], bytes], *, silent: bool = False
) -> Iterator[None]:
    """An agent that gives these bytes to whatever it is asked, then ends the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        done = threading.Event()

        def serve() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    size = int.from_bytes(caller.recv(4), "big")
                    asked = b""
                    while len(asked) < size:
                        asked += caller.recv(size - len(asked))
                    caller.sendall(answer(asked))
                    if silent:
                        done.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            done.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def identities(*blobs: bytes) -> bytes:
    listed = b"".join(ssh_string(blob) + ssh_string(b"comment") for blob in blobs)
    return ssh_string(b"\x0c" + len(blobs).to_bytes(4, "big") + listed)


@pytest.fixture
def path(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(short / "socket"))
    return short / "socket"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        bytes(4),
        b"\xff\xff\xff\xff",
        ssh_string(b"\x0c"),
        ssh_string(b"\x0c\xff\xff\xff\xff"),
        ssh_string(b"\x0c\x00\x00\x00\x01"),
        ssh_string(b"\x0c\x00\x00\x00\x01\xff\xff\xff\xff"),
        identities(BLOB)[:-1],
        ssh_string(identities(BLOB)[4:] + b"more"),
        ssh_string(b"\x05"),
    ],
)
def test_an_agent_that_answers_nonsense_ends_with_an_error(path: Path, answer: bytes) -> None:
    with answering(path, lambda _: answer), pytest.raises(NotAllowed):
        agent_signer(SIGNER.fingerprint)


@pytest.mark.parametrize("begun", [b"", b"\x00\x00", identities(BLOB)[:20]])
def test_an_agent_that_never_answers_ends_with_an_error(path: Path, begun: bytes) -> None:
    with (
        answering(path, lambda _: begun, silent=True),
        pytest.raises(NotAllowed, match="did not answer"),
    ):
        agent_signer(SIGNER.fingerprint, time_limit=0.05)


@pytest.mark.parametrize(
    "signed",
    [
        bytes(64),
        b"",
        SIGNER.sign(b"other data"),
    ],
)
def test_a_signature_that_does_not_fit_is_never_used(path: Path, signed: bytes) -> None:
    def answer(asked: bytes) -> bytes:
        if asked[0] == 11:
            return identities(BLOB)
        return ssh_string(b"\x0e" + ssh_string(ssh_string(b"ssh-ed25519") + ssh_string(signed)))

    with answering(path, answer):
        found = agent_signer(SIGNER.fingerprint)
        with pytest.raises(NotAllowed, match="does not answer as an ssh-agent"):
            found.sign(b"data")


def test_a_key_on_a_security_token_is_refused(path: Path) -> None:
    blob = ssh_string(b"sk-ssh-ed25519@openssh.com") + ssh_string(SIGNER.public_key)
    blob += ssh_string(b"ssh:")
    name = "SHA256:" + signing.to_base64(sha256(blob).digest()).rstrip("=")
    with answering(path, lambda _: identities(blob)):
        with pytest.raises(NotAllowed, match="security token"):
            agent_signer(name)
        with Swarms() as swarms, pytest.raises(NotAllowed, match="interlock key new NAME"):
            swarms.home("shop").swarms.register("shop", bus="memory:bus", key=name)
        assert agent_keys() == []


def test_a_key_of_small_order_in_an_agent_is_refused(path: Path) -> None:
    with (
        answering(path, lambda _: identities(signing.key_blob(bytes(32)))),
        pytest.raises(BadInput, match="small order"),
    ):
        agent_signer(signing.fingerprint(bytes(32)))


def test_no_descriptor_is_left_open(path: Path) -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/dev/fd"))

    with answering(path, lambda _: identities(BLOB)):
        agent_signer(SIGNER.fingerprint)
        before = descriptors()
        for _ in range(5):
            agent_signer(SIGNER.fingerprint)
        assert len(descriptors()) <= len(before) + 1  # the agent may still close its last one
