"""A fork waits until no other thread is in the midst of an import for Interlock.

A client imports a part of Interlock when it is first used.  The lock of a module that another
thread was importing stays locked in the child of a fork, where that thread does not exist: the
first use of the same part there would wait for it without limit.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

PATIENCE = 5.0
"""Seconds that a fork waits: an import takes a fraction of one."""
_LOOK = 0.0005
_OURS = __name__.partition(".")[0]
_IMPORTER = "<frozen importlib"


def wait_for_imports() -> None:
    """Wait until no other thread imports, unless this thread forks in the midst of an import."""
    if len(sys._current_frames()) == 1 or _imports(sys._getframe()):  # noqa: SLF001 - no other way
        return
    ends = time.monotonic() + PATIENCE
    while _others_import() and time.monotonic() < ends:
        time.sleep(_LOOK)


def _others_import() -> bool:
    me = threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way
    return any(_imports(frame) for thread, frame in frames.items() if thread != me)


def _imports(frame: FrameType | None) -> bool:
    """Whether a module of Interlock is being run there, or one that Interlock asked for."""
    importing = False
    while frame is not None:
        ours = str(frame.f_globals.get("__name__")).partition(".")[0] == _OURS
        if ours and (importing or frame.f_code.co_name == "<module>"):
            return True
        importing = importing or frame.f_code.co_filename.startswith(_IMPORTER)
        frame = frame.f_back
    return False
