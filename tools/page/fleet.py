"""A fleet to look at: agents, tasks, locks, mail, a pipeline and a second swarm, in a given folder.

python -m tools.page.fleet FOLDER      fills FOLDER/store.db and works until it is stopped
python -m tools.page.fleet FOLDER --tasks 2000 --agents 200     the size that the bench uses
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import interlock

PLAN = (  # id, title, needs, labels, priority
    ("design", "Design the checkout API", "", "checkout", 1),
    ("docs", "Describe the new endpoints", "", "docs", 5),
    ("schema", "Write the database schema", "design", "checkout,db", 2),
    ("cart", "Build the cart page", "design", "web", 3),
    ("orders", "Implement the order endpoints", "schema", "checkout", 2),
    ("payments", "Connect the payment provider", "schema", "checkout", 2),
    ("e2e", "Test the checkout end to end", "orders,payments,cart", "checkout,test", 2),
    ("ship", "Release the checkout", "e2e,docs", "release", 1),
    ("login-test", "Fix the flaky login test", "", "test", 4),
    ("linter", "Update the linter and its rules", "", "chore", 6),
    ("old-cart", "Remove the old cart", "cart", "web", 7),
    ("thumbnails", "Resize thumbnails in the background", "", "web", 5),
    ("licences", "List the licences of all dependencies", "", "chore,docs", 8),
)
PIPELINE = """
[[pipeline.release.phase]]
name = "build"
tasks = [{id = "linux"}, {id = "mac"}]

[[pipeline.release.phase]]
name = "test"

[[pipeline.release.phase]]
name = "merge"
pre = [{lock_free = "freeze"}]
hold = ["lock/trunk"]

[[pipeline.release.phase]]
name = "deploy"
"""
GUARDS = """
[guard.calm]
when = [{lock_free = "freeze"}, {lock_free = "staging"}]

[guard.tested]
when = {any = [{command = ["make", "test"]}, {file_exists = "TESTED"}]}
on_failure = {fail = "the tests do not pass"}

[guard.room]
when = {semaphore_available = {semaphore = "previews", slots = 1}}
"""
AGENTS = ("ada", "bob", "carol", "dave", "eve", "frank")


class Sample:
    """A filled store whose agents stay alive until it is closed."""

    def __init__(self, folder: Path) -> None:
        """Make the store in this folder; keys go there too."""
        os.environ["INTERLOCK_KEYS_DIR"] = str(folder / "keys")
        self.folder, self.url = folder, str(folder / "store.db")
        self._open = ExitStack()
        self.agents = {name: self.join(name) for name in AGENTS}

    def join(self, name: str, url: str = "") -> interlock.Fleet:
        """An agent with a session."""
        return self._open.enter_context(interlock.connect(url or self.url, agent=name))

    def close(self) -> None:
        """All agents leave."""
        self._open.close()

    def fill(self) -> None:
        """One of everything that the page shows."""
        self.work()
        self.grants()
        self.messages()
        self.pipelines()
        self.swarms()
        self.code()

    def work(self) -> None:
        """Tasks in every state, with notes, progress and an error."""
        ada, bob, carol, dave, eve, frank = self.agents.values()
        for id_, title, needs, labels, priority in PLAN:
            ada.tasks.publish(
                id_, title=title, needs=needs.split(",") if needs else (), priority=priority,
                labels=labels.split(","), retries=0 if id_ == "login-test" else 3,
            )  # fmt: skip
        done = ada.tasks.claim("design")
        assert isinstance(done, interlock.Claimed), done
        ada.tasks.complete("design", token=done.token)
        for agent, id_, part, doing in (
            (bob, "schema", 0.4, "writing migrations"),
            (carol, "cart", 0.75, "styles for small screens"),
            (eve, "thumbnails", 0.1, "measuring the queue"),
        ):
            assert agent.tasks.claim(id_)
            agent.tasks.progress(id_, part, doing=doing)
            agent.pulse.be("busy", doing=f"task/{id_}", note=doing)
        failed = dave.tasks.claim("login-test")
        assert isinstance(failed, interlock.Claimed), failed
        error = "AssertionError: expected status 200, got 502\n  tests/login.py:88 in test_login"
        dave.tasks.fail("login-test", error, token=failed.token)
        ada.tasks.note("orders", "the provider sends each webhook twice")
        ada.tasks.cancel("licences", "covered by the new linter")
        dave.pulse.be("waiting")
        frank.pulse.be("idle")

    def grants(self) -> None:
        """Locks and slots with holders and queues."""
        ada, bob, carol, dave, eve, frank = self.agents.values()
        bob.locks.acquire("merge", metadata={"branch": "schema"})
        carol.locks.acquire("staging")
        frank.locks.acquire("freeze", metadata={"why": "invoices run until noon"})
        eve.semaphores.acquire("builds", capacity=3, weight=2)
        carol.semaphores.acquire("builds")
        self._in_background(lambda: carol.locks.acquire("merge", wait=7200))
        self._in_background(lambda: dave.locks.acquire("merge", wait=7200))
        self._in_background(lambda: dave.semaphores.acquire("builds", wait=7200))
        ada.pulse.be("busy", doing="review", note="reads the plan")

    def messages(self) -> None:
        """Mail in a thread, an alert, an open question and two decisions."""
        ada, bob, carol, dave, eve, _ = self.agents.values()
        bob.messages.subscribe("build/failed")
        first = ada.messages.send(
            ["bob", "carol"], "Two tables or one? I would keep orders and items apart.",
            subject="Shape of an order", thread="order-shape",
        )  # fmt: skip
        assert isinstance(first, interlock.Sent), first
        bob.messages.send(
            ["ada"], "Two. Items change, orders do not.", subject="Re: Shape of an order",
            thread="order-shape", reply_to=first.message,
        )  # fmt: skip
        eve.messages.alert("build/failed", {"branch": "thumbnails", "commit": "4f1c"}, urgent=True)
        dave.messages.share("bob", "report", {"slowest": "test_login", "seconds": 41})
        self._in_background(
            lambda: carol.messages.query("bob", "Is the column nullable?", timeout=7200)
        )
        bob.messages.query("?payments", "May I store card numbers for a day?", person=True)

    def pipelines(self) -> None:
        """A release that waits for a lock."""
        ada, bob = self.agents["ada"], self.agents["bob"]
        file = self.folder / "release.toml"
        file.write_text(PIPELINE)
        ada.pipelines.define(file)
        ada.pipelines.start("release", id="r1")
        for part in ("r1.linux", "r1.mac"):
            claim = bob.tasks.claim(part)
            assert isinstance(claim, interlock.Claimed), claim
            bob.tasks.complete(part, token=claim.token)
        ada.pipelines.advance("r1", phase="test")
        ada.pipelines.start("release", id="r2")

    def swarms(self) -> None:
        """A second swarm on a bus, which this one does not trust yet."""
        bus, ada = str(self.folder / "bus.db"), self.agents["ada"]
        bank = self.join("bank-agent", str(self.folder / "bank.db"))
        prints = {}
        for name, fleet in (("shop", ada), ("bank", bank)):
            fleet.keys.new(name)
            registered = fleet.swarms.register(name, bus=bus, key=name)
            assert isinstance(registered, interlock.SwarmRegistered), registered
            prints[name] = registered.fingerprint
        bank.swarms.allow("shop", key=prints["shop"])
        bank.requests.send("shop", "can:translate", {"text": "Rechnung"})
        ada.requests.tend()  # not allowed: it goes to quarantine
        ada.swarms.allow("bank", key=prints["bank"])
        ada.requests.send("bank", "can:charge", {"order": 7, "euro": 12})

    def code(self) -> None:
        """Reserved files, a merge queue, schedules, guards and budgets."""
        ada, bob, carol, dave, eve, frank = self.agents.values()
        bob.reservations.reserve(
            "migrations/*.sql", "src/orders/", reason="new schema", repository="shop", ttl=5400
        )
        carol.reservations.reserve("src/cart/**", reason="small screens", repository="shop")
        dave.reservations.reserve(
            "src/orders/api.py", reason="rename a field", repository="shop", on_conflict="queue"
        )
        eve.reservations.reserve("docs/", shared=True, repository="handbook")
        self.merges()
        ada.schedules.add("nightly", cron="0 2 * * *", zone="Europe/Rome", title="Nightly build")
        ada.schedules.add("sweep", every=3600, title="Delete old previews", labels=["chore"])
        ada.schedules.add("invoices", cron="0 12 1 * *", title="Send the invoices")
        frank.schedules.pause("invoices", "the new tax rates are not in yet")
        file = self.folder / "guards.toml"
        file.write_text(GUARDS)
        ada.guards.define(file)
        ada.budgets.set("fleet", cost=50, reason="for this sprint")
        ada.budgets.set("agent/eve", tokens=400_000, reason="experiments")
        for agent, read, written, cost in (
            (ada, 310_000, 24_000, 3.1), (bob, 1_240_000, 96_000, 12.4),
            (carol, 820_000, 61_000, 8.0), (eve, 402_000, 31_000, 4.2),
        ):  # fmt: skip
            agent.budgets.count(input=read, output=written, cache_read=read * 4, cost=cost)

    def merges(self) -> None:
        """A queue with a bounced branch."""
        place = self.folder / "shop"
        place.mkdir()
        git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.com", "-C", str(place)]

        def run(*words: str) -> None:
            subprocess.run([*git, *words], check=True, capture_output=True)

        run("init", "-b", "main")
        (place / "README").write_text("shop\n")
        run("add", ".")
        run("commit", "-m", "begin")
        for agent, branch in (("carol", "cart-page"), ("bob", "schema"), ("eve", "thumbnails")):
            run("switch", "-c", branch, "main")
            (place / ("README" if branch != "thumbnails" else "images")).write_text(branch)
            run("add", ".")
            run("commit", "-m", branch)
            self.agents[agent].merges.submit(branch, repository=place)
        run("switch", "--detach", "main")
        words = f"merge serve --drain --keep-branches --agent queue --store {self.url} -- true"
        command = [sys.executable, "-m", "interlock", *words.split()]
        subprocess.run(command, cwd=place, check=False, capture_output=True)
        for agent, branch in (("bob", "schema"), ("dave", "orders-api")):
            run("switch", "-C", branch, "main")
            (place / branch).write_text(branch)
            run("add", ".")
            run("commit", "-m", branch)
            self.agents[agent].merges.submit(branch, repository=place)

    def grow(self, tasks: int, agents: int) -> None:
        """As many tasks and agents as a large fleet has."""
        ada = self.agents["ada"]
        plan = [
            {"id": f"bulk/{n:05}", "title": f"Convert page {n}", "labels": [f"part{n % 7}"],
             **({"needs": [f"bulk/{n - 10:05}"]} if n % 10 == 5 and n > 10 else {})}
            for n in range(tasks)
        ]  # fmt: skip
        for start in range(0, tasks, 500):
            ada.tasks.publish_all(plan[start : start + 500], id=f"bulk-{start}")
        for n in range(agents):
            self._open.enter_context(closing(self._worker(f"worker-{n:03}")))

    def move(self, stop: threading.Event) -> None:
        """Small changes, one a second, until stopped."""
        bob, eve = self.agents["bob"], self.agents["eve"]
        for n in itertools.count():
            if stop.wait(1.0):
                return
            bob.tasks.progress("schema", 0.4 + n % 50 / 100, doing=f"table {n % 50}")
            if n % 3 == 0:
                eve.messages.send(["ada"], f"Batch {n} is done.", subject=f"Batch {n}")
            with eve.lock("cache", wait=1):
                stop.wait(0.2)

    def _worker(self, name: str) -> interlock.Fleet:
        """An agent that reports what it does, with a session that needs no renewal for an hour."""
        worker = interlock.connect(self.url, agent=name, ttl=3600)
        worker.pulse.be("idle")
        return worker

    def _in_background(self, wait: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(interlock.InterlockError):  # the store is closed in the end
                wait()

        threading.Thread(target=run, daemon=True).start()


def main() -> None:
    """Fill and work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--agents", type=int, default=0)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    sample = Sample(asked.folder)
    sample.fill()
    sample.grow(asked.tasks, asked.agents)
    print("filled", sample.url, flush=True)
    sample.move(threading.Event())


if __name__ == "__main__":
    main()
