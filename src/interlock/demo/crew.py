"""The worker processes: started, told, heard, and ended one by one by their pid."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from interlock.demo.protocol import NEWS, STORE, Failed, Job, Said, decode_said, encode
from interlock.demo.worker import LEAVING

NAMES = ("ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")


def names(count: int) -> tuple[str, ...]:
    """So many agents by name."""
    return (*NAMES[:count], *(f"w{number}" for number in range(len(NAMES) + 1, count + 1)))


@dataclass(slots=True)
class Member:
    """One worker, as far as the demo knows."""

    name: str
    process: subprocess.Popen[bytes]
    errors: str
    state: str = "starting"
    rest: bytes = field(default=b"", repr=False)

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def out(self) -> int:
        """The file descriptor that its words come from."""
        assert self.process.stdout is not None  # noqa: S101 - it was started with a pipe
        return self.process.stdout.fileno()


class Crew:
    """All workers."""

    def __init__(self, folder: str, store: str) -> None:
        self.store = store
        self.members: dict[str, Member] = {}
        self._folder = folder
        self._selector = selectors.DefaultSelector()

    def start(self, job: Job) -> None:
        """Begin a process; it says ``ready`` when it has joined."""
        errors = os.path.join(self._folder, f"{job.agent}.err")
        with open(errors, "wb") as file:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-P", "-m", "interlock.demo.worker", encode(job).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, STORE: self.store},
                start_new_session=True,  # A Ctrl-C is for the demo, which ends its workers itself.
            )
        member = self.members[job.agent] = Member(job.agent, process, errors)
        self._selector.register(member.out, selectors.EVENT_READ, member)

    def tell(self, order: str, whom: Sequence[str] = ()) -> None:
        """Give an order to some, or to all that live."""
        for member in self.members.values():
            if (member.name in whom or not whom) and member.process.stdin is not None:
                with suppress(BrokenPipeError):  # It died; hearing nothing more will tell.
                    os.write(member.process.stdin.fileno(), order.encode() + b"\n")

    def hear(self, timeout: float) -> Iterator[tuple[Member, Said]]:
        """What the workers said, waiting for it at most so long."""
        for key, _ in self._selector.select(timeout):
            member: Member = key.data
            heard = os.read(member.out, 65536)
            if not heard:
                self._ended(member)
            *lines, member.rest = (member.rest + heard).split(b"\n")
            for line in lines:
                said = decode_said(line)
                if member.state != "killed" and said.state not in NEWS:
                    member.state = said.state
                yield member, said

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until the process is gone."""
        member = self.members[name]
        member.state = "killed"
        member.process.kill()
        member.process.wait()

    def end(self) -> None:
        """End whoever is left: politely first, so that they leave nothing in the store."""
        ends = time.monotonic() + LEAVING
        for member in self.members.values():
            if member.process.stdin is not None:
                member.process.stdin.close()
        for member in self.members.values():
            try:
                member.process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            if member.process.stdout is not None:
                member.process.stdout.close()
        self._selector.close()

    def _ended(self, member: Member) -> None:
        self._selector.unregister(member.out)
        status = member.process.wait()
        if member.state in ("killed", "done"):
            return
        with open(member.errors, encoding="utf-8", errors="replace") as file:
            *_, why = ("it said nothing", *filter(None, map(str.strip, file)))
        raise Failed(f"{member.name} (pid {member.pid}) ended with status {status}: {why}")
