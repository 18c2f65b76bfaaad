"""The lock of a ref that a killed push left at a remote on this disk."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote
from tests.stores.git.test_beats import KEY, beaten
from tests.stores.git.test_faults import Stopped, impatient, until
from tests.stores.git.test_pushes import Counts

from interlock.errors import StoreBusy
from interlock.store import Put
from interlock.stores.git import left_locks
from interlock.stores.git.repository import one_of_a_kind
from interlock.testing.conformance.place import there, write

BRANCH = "refs/heads/interlock"
AGENT = """
import sys
from interlock.store import Put
from interlock.stores.git import GitStore
from interlock.testing.conformance.place import write
write(GitStore(sys.argv[1], cache=sys.argv[2], min_ttl=0.5), Put("a", b"lost"))
"""


def below(pid: int) -> list[int]:
    """A process and all that it started, also in sessions of their own."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, task.read_text().split())
    return found


@pytest.fixture
def killed(remote: Remote, host: Opens, tmp_path: Path) -> Callable[[str], Path]:
    """Kills an agent with its git while the branch is locked; returns the lock that it leaves."""
    host("b")  # makes the branch

    def kill(name: str = "a") -> Path:
        stopped = Stopped(remote, "reference-transaction")
        words = [sys.executable, "-c", AGENT, remote.url, f"{tmp_path}/{name}"]
        agent = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        stopped.wait()
        everybody = below(agent.pid)
        assert len(everybody) > 2
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        until(lambda: not any(alive(pid) for pid in everybody))
        lock = remote.path / f"{BRANCH}.lock"
        assert len(lock.read_text()) == 41
        return lock

    return kill


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_lock_of_a_push_that_was_killed_with_its_agent_is_removed_by_every_host(
    killed: Callable[[str], Path], host: Opens, name: str
) -> None:
    lock = killed("a")
    store = host(name)
    write(store, Put("b", b"1"))
    assert not lock.exists()
    assert there(host("c"), "b").value == b"1"
    assert store.read("a")["a"] is None


def test_a_push_that_is_stopped_with_the_lock_of_the_branch_keeps_it(
    remote: Remote, host: Opens
) -> None:
    one, two, work = impatient(host("a"), 60.0), host("b", patience=0.3), Counts()
    stopped = Stopped(remote, "reference-transaction")
    pushing = threading.Thread(target=one.transact, args=(work,))
    pushing.start()
    stopped.wait()
    with pytest.raises(StoreBusy, match=f"if no git runs there: rm {remote.path}/{BRANCH}.lock"):
        write(two, Put("a", b""))
    stopped.go_on()
    pushing.join()
    assert work.runs == 1
    assert there(two, "counter").value == b"1"


def test_one_process_of_a_killed_push_that_lives_keeps_the_lock(
    killed: Callable[[str], Path], host: Opens, remote: Remote
) -> None:
    lock = killed("a")
    with open(remote.path / left_locks.NAME) as held:  # as what it started does, in any container
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(StoreBusy, match=r"interlock\.lock"):
            write(host("b", patience=0.3), Put("a", b""))
        assert lock.exists()


def of_another_boot(notes: Path) -> None:
    boot = notes.read_text().split()[0]
    notes.write_text(notes.read_text().replace(boot, "another"))


def copied(notes: Path) -> None:
    notes.rename(notes.with_suffix(".old"))
    notes.write_text(notes.with_suffix(".old").read_text())


@pytest.mark.parametrize("change", [of_another_boot, copied])
def test_notes_of_another_boot_or_from_another_file_prove_nothing(
    killed: Callable[[str], Path],
    host: Opens,
    remote: Remote,
    change: Callable[[Path], None],
) -> None:
    lock = killed("a")
    change(remote.path / left_locks.NAME)
    with pytest.raises(StoreBusy, match=r"interlock\.lock"):
        write(host("b", patience=0.3), Put("a", b""))
    assert lock.exists()


def test_a_lock_at_a_remote_that_is_not_on_a_local_disk_stays(
    killed: Callable[[str], Path], host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = killed("a")
    monkeypatch.setattr(left_locks, "file_system", lambda _: "nfs4")
    with pytest.raises(StoreBusy, match=r"interlock\.lock"):
        write(host("b", patience=0.3), Put("a", b""))
    assert lock.exists()


def test_a_lock_stays_where_the_user_has_led_the_push_elsewhere(
    killed: Callable[[str], Path],
    host: Opens,
    remote: Remote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = killed("a")
    (tmp_path / "config").write_text(f'[url "file://{remote.path}"]\npushInsteadOf={remote.path}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", f"{tmp_path}/config")
    with pytest.raises(StoreBusy, match=r"interlock\.lock"):
        write(host("b", patience=0.3), Put("a", b""))
    assert lock.exists()


@pytest.mark.parametrize("content", ["", "1" * 40])
def test_a_lock_that_no_push_of_interlock_wrote_stays_and_the_error_has_the_command(
    remote: Remote, host: Opens, content: str
) -> None:
    store = host(patience=0.3)
    write(store, Put("a", b"1"))
    lock = remote.path / f"{BRANCH}.lock"
    lock.write_text(content)
    with pytest.raises(StoreBusy) as caught:
        write(store, Put("a", b"2"))
    command = str(caught.value).partition("if no git runs there: ")[2]
    assert lock.exists()
    subprocess.run(shlex.split(command), check=True)
    write(store, Put("a", b"2"))


def test_doctor_has_the_command_that_removes_a_lock_which_was_left(
    remote: Remote, host: Opens
) -> None:
    store = host()
    lock = remote.path / f"{BRANCH}.lock"
    lock.touch()
    assert not [each for each in store.examine() if each.name == "locks"]
    before = time.time() - 2 * left_locks.OLD
    os.utime(lock, (before, before))
    (found,) = [each for each in store.examine() if each.name == "locks"]
    assert (found.verdict, found.remedy) == ("bad", f"if no git runs there: rm {lock}")


def test_the_lock_of_a_beat_that_was_killed_is_removed(remote: Remote, host: Opens) -> None:
    store = host()
    beaten(store, 30.0)
    (name,) = remote.git("for-each-ref", "--format=%(refname)", "refs/interlock").splitlines()
    stopped = Stopped(remote, "reference-transaction")
    done: list[frozenset[str]] = []
    beat = threading.Thread(target=lambda: done.append(store.renew((Put(KEY, b"", ttl=30.0),))))
    beat.start()
    stopped.wait()
    pid = int((remote.path / "stopped").read_text())
    assert (remote.path / f"{name}.lock").exists()
    os.kill(pid, signal.SIGKILL)
    beat.join()
    assert done == [frozenset({KEY})]
    assert not (remote.path / f"{name}.lock").exists()


def test_notes_of_pushes_stay_short(
    remote: Remote, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_locks, "_LONGEST", 1000)
    monkeypatch.setattr(left_locks, "_KEPT", 400)
    store = host()
    for number in range(12):
        write(store, Put("a", b"%d" % number))
        assert (remote.path / left_locks.NAME).stat().st_size < 1400
    (last,) = (remote.path / left_locks.NAME).read_text().splitlines()[-1:]
    assert last.endswith(f" {BRANCH} {remote.head()}")


def test_a_file_of_notes_that_is_a_link_is_left_alone(
    remote: Remote, host: Opens, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("mine")
    (remote.path / left_locks.NAME).symlink_to(tmp_path / "victim")
    write(host(), Put("a", b"1"))
    assert (tmp_path / "victim").read_text() == "mine"


def test_two_hosts_that_settle_at_once_never_push_the_same_commit() -> None:
    assert one_of_a_kind("Settle") != one_of_a_kind("Settle")
