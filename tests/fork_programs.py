"""Programs that fork; see ``tests/test_fork_imports.py``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tests.processes.helpers import until
from tests.processes.lock_programs import say

import interlock

SLOW = "interlock.nouns.pipelines.noun"
"""A module that a client imports when it is first used."""


class SlowFinder:
    """Holds up the import of one module until it may go on."""

    def __init__(self) -> None:
        self.came, self.goes_on = threading.Event(), threading.Event()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Leave it to the next finder, after a while."""
        del path, target
        if name == SLOW:
            self.came.set()
            self.goes_on.wait(60)
        return None


def fork_beside_an_import(url: str) -> None:
    """Fork while another thread imports; the child uses the same module."""
    finder = SlowFinder()
    assert SLOW not in sys.modules
    sys.meta_path.insert(0, finder)
    fleet = interlock.connect(url, agent="ada")

    def use() -> None:
        fleet.pipelines.list()

    thread = threading.Thread(target=use)
    thread.start()
    finder.came.wait(60)
    main, forked = threading.get_ident(), threading.Event()

    def go_on() -> None:
        until(lambda: forked.is_set() or waits_to_fork(main))
        finder.goes_on.set()

    threading.Thread(target=go_on).start()
    child = os.fork()
    if child == 0:
        finder.goes_on.set()
        with interlock.connect(url, agent="child") as own:
            own.pipelines.list()
        say("child done")
        os._exit(0)
    forked.set()
    os.waitpid(child, 0)
    thread.join()
    fleet.close()


def waits_to_fork(thread: int) -> bool:
    """Whether a thread waits until it may fork."""
    return "fork_imports.py" in str(sys._current_frames()[thread])


def fork_beside_first_uses(url: str) -> None:
    """Fork at any moment of the first uses of a client; each child uses the same parts."""
    fleet = interlock.connect(url, agent="ada")
    nouns = ("tasks", "messages", "pipelines", "schedules", "budgets", "merges", "reservations")

    def use(client: interlock.Fleet) -> None:
        for noun in nouns:
            getattr(client, noun)

    thread = threading.Thread(target=use, args=(fleet,))
    thread.start()
    children: list[int] = []
    while thread.is_alive() or not children:
        child = os.fork()
        if child == 0:
            use(interlock.connect("memory:", agent="child"))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    say("all done")
    fleet.close()


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
