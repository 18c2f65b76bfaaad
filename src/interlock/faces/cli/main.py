"""The entry point: it does as little as possible before and after the command itself.

A command that is handed over to a warm process needs nothing but this module and ``warm.py``, so
this one imports only what is built into Python, too.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock

from interlock.faces.cli.warm import hand_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
else:
    ModuleType = type(sys)

BROKEN_PIPE = 141
UNWRITTEN = 4
_replacing = RLock()  # a signal handler may use one, too
"""Held by a thread that takes a ``LazyModule`` away: others may use the same one first."""


def main() -> None:
    """Run the command that argv holds, and end the process with its status."""
    if sys.stderr is None:  # it was closed: no reader wants the notes beside the answer
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the very end
    status = hand_over(sys.argv[1:])
    if status is None:
        import gc

        # Imported modules are never garbage: collecting would take a tenth of a command's time.
        gc.set_threshold(50_000, 20, 20)
        status = carry_out(sys.argv[1:])
    if "multiprocessing" in sys.modules:
        sys.exit(status)
    os._exit(status)  # the interpreter's farewell to its modules is another tenth


def carry_out(argv: Sequence[str]) -> int:
    """Carry a command out in this process, and return its exit status."""
    import_msgspec()
    if list(argv[:1]) == ["hook"] and not any(word.startswith("-") for word in argv):
        from interlock.faces.hooks.main import main as hook  # a host waits for it at every edit

        status = hook(list(argv[1:]))
    else:
        from interlock.faces.cli.command import run

        status = run(argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # it may have been closed before the command began
                stream.flush()
        except BrokenPipeError:
            status = BROKEN_PIPE
        except OSError:
            status = status or UNWRITTEN
    return status


def import_msgspec() -> None:
    """Import msgspec without what a command rarely needs, which is a tenth of a command's time.

    msgspec takes three names from typing_extensions, which gRPC installs; ``typing`` has them all.
    uuid, which msgspec imports, asks ``platform`` for the name of the system.
    typing and msgspec take two types and one function of ``re``, which a command rarely uses.
    The datetime of Python 3.11 makes all of its classes in Python before it takes those in C.
    msgspec makes a ``ForwardRef`` only to find out whether it takes ``is_class``, as it does in
    every Python from 3.11 on; the first one makes the 170 classes of ``ast``.
    """
    if "msgspec" in sys.modules:
        return
    hidden = "typing_extensions" not in sys.modules
    if hidden:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    for name in ("msgspec.inspect", "msgspec.toml", "msgspec.yaml"):
        LazyModule(name)
    LazyModule("msgspec._json_schema", "schema", "schema_components")
    if "platform" not in sys.modules:
        LazyModule("platform").system = lambda: os.uname().sysname
    if "re" not in sys.modules:
        _import_re_later()
    if sys.version_info < (3, 12) and "datetime" not in sys.modules:
        import _datetime  # type: ignore[import-not-found]

        sys.modules["datetime"] = _datetime
    import typing

    made, typing.ForwardRef = typing.ForwardRef, lambda *_, **__: None  # type: ignore[assignment,misc]
    try:
        import msgspec  # noqa: F401
    finally:
        typing.ForwardRef = made  # type: ignore[misc]
        if hidden:
            del sys.modules["typing_extensions"]


def _import_re_later() -> None:
    later = LazyModule("re", "compile")
    if sys.version_info < (3, 13):  # since then typing takes no types of re when it is imported
        import _sre  # type: ignore[import-not-found]

        nothing = _sre.compile("", 0, [1], 0, {}, ())  # as re makes it of an empty pattern
        later.__dict__.update(Pattern=type(nothing), Match=type(nothing.match("")))


class LazyModule(ModuleType):
    """Stands for a module that is imported when one of its names is first used.

    Other modules may import the named functions before that; the first call imports the module.
    """

    system: Callable[[], str]

    def __init__(self, name: str, *functions: str) -> None:
        super().__init__(name)
        sys.modules[name] = self
        for function in functions:
            setattr(self, function, self._calling(function))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked for by the import system
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def _imported(self) -> ModuleType:
        from importlib import import_module

        with _replacing:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        module = import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return module

    def _calling(self, function: str) -> object:
        return lambda *a, **k: getattr(self._imported(), function)(*a, **k)  # noqa: PLW0108
