"""The entry point: it does as little as possible before and after the command itself."""

from __future__ import annotations

import gc
import os
import sys

BROKEN_PIPE = 141
UNWRITTEN = 4


def main() -> None:
    """Run the command that argv holds, and end the process with its status."""
    # Imported modules are never garbage: collecting would take a tenth of a command's time.
    gc.set_threshold(50_000, 20, 20)
    if sys.stderr is None:  # it was closed: no reader wants the notes beside the answer
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the very end
    _import_msgspec()
    from interlock.faces.cli.command import run

    status = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # it may have been closed before the command began
                stream.flush()
        except BrokenPipeError:
            status = BROKEN_PIPE
        except OSError:
            status = status or UNWRITTEN
    if "multiprocessing" in sys.modules:
        sys.exit(status)
    os._exit(status)  # the interpreter's farewell to its modules is another tenth


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which gRPC installs: a seventh of a command's time.

    msgspec takes three names from it if it is there; ``typing`` has them all.
    """
    hidden = "typing_extensions" not in sys.modules
    if hidden:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import msgspec  # noqa: F401

    if hidden:
        del sys.modules["typing_extensions"]
