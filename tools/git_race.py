"""Measures the git store: several servers commit through one remote, each with a cache of its own.

``python tools/git_race.py``            five servers, a remote on this disk, 30 seconds
``python tools/git_race.py --ssh``      the same over ssh, through an ``sshd`` on loopback
``python tools/git_race.py --alone``    one change, and the same commit and push by hand
``python tools/git_race.py --servers 5 --seconds 60 --rate 900 --url git+ssh://host/fleet.git``

It prints the changes in a minute, how long one took, when the other servers saw it, the smallest
share of a server, and the CPU time of the servers and their git for a change; with ``--ssh`` also
that of the ``sshd`` and what it starts, from its start on.
"""  # noqa: INP001 - a script

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from interlock.store import Put, Txn, View
from interlock.stores.git import GitStore
from interlock.testing.servers import SshServer
from interlock.testing.servers.git import end_connections

Times = list[float]
write = sys.stdout.write


def main() -> None:
    """Run the race, or the comparison."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--servers", type=int, default=5)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--rate", type=float, default=0.0, help="changes a minute, of all servers")
    options.add_argument("--clients", type=int, default=1, help="threads of each server")
    options.add_argument("--url", default="", help="a remote without anything on its branch")
    options.add_argument("--ssh", action="store_true", help="start an sshd, and race through it")
    options.add_argument("--alone", action="store_true")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="interlock-git-race-"))
    try:
        if given.ssh:
            _over_ssh(given, folder)
        else:
            _measure(given, given.url or _remote(folder), folder)
    finally:
        for place in folder.glob("run-*"):
            end_connections(str(place))
        shutil.rmtree(folder, ignore_errors=True)


def _measure(given: argparse.Namespace, url: str, folder: Path) -> int:
    """Measure, and say how many changes there were."""
    return _alone(url, folder) if given.alone else _race(given, url, folder)


def _over_ssh(given: argparse.Namespace, folder: Path) -> None:
    """Measure through a server of this machine; each server of the race keeps its connection."""
    with SshServer(folder / "ssh") as server:
        os.environ["GIT_SSH_COMMAND"] = server.client_command()
        os.environ["XDG_RUNTIME_DIR"] = _runtime(folder, "first")
        made = _measure(given, server.url(), folder)
        write(f"ssh logins  {server.log().count('Accepted publickey')}\n")
        for place in folder.glob("run-*"):
            end_connections(str(place))
        time.sleep(0.5)  # until sshd has waited for its processes, whose times it then has
        before = _children()
    write(f"CPU of sshd {(_children() - before) * 1000 / max(1, made):.0f} ms a change\n")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _runtime(folder: Path, name: str) -> str:
    """A runtime folder: a host has one, and its ssh connection is in it."""
    place = folder / f"run-{name}"
    place.mkdir()
    return str(place)


def _remote(folder: Path) -> str:
    subprocess.run(["git", "init", "-q", "--bare", f"{folder}/remote.git"], check=True)  # noqa: S603, S607
    return f"git+file://{folder}/remote.git"


def _race(given: argparse.Namespace, url: str, folder: Path) -> int:
    GitStore(url, cache=f"{folder}/first").close()
    pipes, processes = [], []
    for number in range(given.servers):
        here, there = multiprocessing.Pipe()
        pace = 60.0 * given.servers * given.clients / given.rate if given.rate else 0.0
        args = (url, f"{folder}/{number}", number, given.seconds, pace, given.clients, there)
        processes.append(multiprocessing.Process(target=_server, args=args))
        pipes.append(here)
    for process in processes:
        process.start()
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    took = [each for times, _, _ in found for each in times]
    seen = [each for _, times, _ in found for each in times]
    shares = [len(times) for times, _, _ in found]
    minute = len(took) * 60 / given.seconds
    least = min(shares) * len(shares) / max(1, sum(shares))
    write(f"changes/min {minute:.0f}, least share {least:.2f}\n")
    write(f"one change  {_spread(took)}\n")
    write(f"seen after  {_spread(seen)}\n")
    write(
        f"CPU         {sum(cpu for *_, cpu in found) * 1000 / max(1, len(took)):.0f} ms a change\n"
    )
    return len(took)


def _server(  # noqa: PLR0917 - one argument for each option
    url: str, cache: str, number: int, seconds: float, pace: float, clients: int, pipe: Connection
) -> None:
    if url.startswith("git+ssh:"):
        os.environ["XDG_RUNTIME_DIR"] = _runtime(Path(cache).parent, str(number))
    store = GitStore(url, cache=cache)
    watch = store.watch("log/", store.read().revision)
    took: Times = []
    seen: Times = []
    over = threading.Event()

    def follow() -> None:
        while not over.is_set():
            for change in watch.take(0.5):
                made = json.loads(getattr(change, "value", b"") or b"{}")
                if made.get("server") != number and "at" in made:
                    seen.append(time.time() - made["at"])

    def work(client: int) -> None:
        turn = time.monotonic()
        count = 0
        while time.monotonic() < ends:
            count += 1
            began = time.monotonic()
            store.transact(_change(number, client, count))
            took.append(time.monotonic() - began)
            turn += pace
            time.sleep(max(0.0, min(turn, ends) - time.monotonic()))

    follower = threading.Thread(target=follow)
    follower.start()
    pipe.send("ready")
    pipe.recv()
    ends = time.monotonic() + seconds
    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    follower.join()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    pipe.send((took, seen, sum(each.ru_utime + each.ru_stime for each in used)))
    store.close()


class _change:  # noqa: N801 - a work
    """Three puts and an entry, as a claim has."""

    def __init__(self, server: int, client: int, count: int) -> None:
        self._server, self._name = server, f"{server}-{client}-{count}"

    def __call__(self, view: View) -> Txn:
        view.read(f"tasks/{self._server}/status")
        entry = {"at": time.time(), "server": self._server, "pad": "x" * 600}
        puts = tuple(
            Put(f"tasks/{self._server}/{part}", b'{"x":"%b"}' % (b"x" * 100))
            for part in ("status", "owner", "data")
        )
        return Txn(id=f"txn_{self._name}", entry=json.dumps(entry).encode(), hash="h", puts=puts)


def _spread(times: Times) -> str:
    times = sorted(times) or [0.0]
    p95 = times[min(len(times) - 1, int(len(times) * 0.95))]
    return f"p50 {statistics.median(times):.3f} s, p95 {p95:.3f} s, max {times[-1]:.3f} s"


def _alone(url: str, folder: Path) -> int:
    """One change of the store, and the same commit and push by hand, in turns."""
    store = GitStore(url, cache=f"{folder}/alone")
    hand = Path(f"{folder}/hand.git")
    remote = store.address.remote
    git = ["git", f"--git-dir={hand}"]
    environment = {**store.repository.environment(), "GIT_DIR": str(hand)}  # the same connection

    def run(*args: str, given: bytes | None = None) -> str:
        done = subprocess.run(  # noqa: S603
            [*git, *args], input=given, capture_output=True, check=True, env=environment
        )
        return done.stdout.decode().strip()

    subprocess.run(["git", "init", "-q", "--bare", str(hand)], check=True)  # noqa: S603, S607
    head = ""
    mine: Times = []
    by_hand: Times = []
    for count in range(60):
        began = time.monotonic()
        store.transact(_change(0, 0, count))
        mine.append(time.monotonic() - began)
        began = time.monotonic()
        blob = run("hash-object", "-w", "--stdin", given=os.urandom(400).hex().encode())
        tree = run("mktree", given=f"100644 blob {blob}\tbatch\n".encode())
        parents = ("-p", head) if head else ()
        new = run("commit-tree", *parents, "-m", "by hand", tree)
        run(
            "push",
            "-q",
            f"--force-with-lease=refs/heads/hand:{head}",
            remote,
            f"{new}:refs/heads/hand",
        )
        by_hand.append(time.monotonic() - began)
        head = new
    store.close()
    one, two = statistics.median(mine[5:]), statistics.median(by_hand[5:])
    write(f"one change alone {one * 1000:.1f} ms, by hand {two * 1000:.1f} ms\n")
    write(f"ratio {one / two:.2f}\n")
    return len(mine) + len(by_hand)


if __name__ == "__main__":
    main()
