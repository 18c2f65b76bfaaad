"""Hand a command over to a warm process, which has imported everything already.

Most of the time of a command goes into starting Python and importing modules.  ``interlock warm``
(``warm_server.py``) is a process that has done that.  It forks for each command, so a command is a
process of its own with the standard files, folder, environment, mask and signals of its caller.

    the command <-- READY ------------------------------- the warm process --- fork --> the child
    the command --- words, folder, environment, files ---------------------------------> the child
    the command <-- the pid of the child, then its exit status -------------------------'

It must change no answer, so code, interpreter and encodings have to be the same: the command sends
its stamp.  It must give no right either: a command in a sandbox would leave it.  So the warm
process itself looks at the user and groups, namespaces, confinement and limits of the command.  If
anything differs, or no warm process is there, the command is carried out as usual.  The warm
process declines commands that run a program or follow a stream (``in_shell``): these last, so the
start matters little.

The child must not outlive the command: its end of the line raises SIGIO when the other one closes,
which ends it as a kill would end the command.

The request is a head of six numbers (``HEAD``) with the files beside it, then texts that each end
with a zero byte, which no word and no variable can contain: the stamp, the words, the environment.

This module is imported by each command, so it imports only what is built into Python.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from _socket import socket
    from collections.abc import Mapping, Sequence
    from types import FrameType
else:
    import _signal  # what signal is made of, without its enumerations

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
READY, DECLINED, BEGUN = b".", b"-", b"+"
LENGTH = 4
"""The bytes of a number on the line."""
HEAD = 6 * LENGTH
"""The size of the texts; how many are of the stamp, words, variables; the mask; ignored signals."""
LARGEST = 1 << 24
"""The most bytes of the texts: more than a system lets a program have."""
SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
"""The signals that a command may ignore, each a bit of the head."""
KILLED = 4
_PEER = 12
"""The bytes of the credentials of a peer: pid, uid, gid."""
_PATIENCE = 1.0
"""Seconds in which a warm process has to begin; else the command is carried out as usual."""
_PRIME = 4_294_967_291


def socket_path() -> str:
    """Where the warm process of this user, interpreter and package listens."""
    text = f"{sys.prefix}\n{sys.version}\n{PACKAGE}".encode(errors="surrogateescape")
    which = int.from_bytes(text, "big") % _PRIME  # a hash that needs no import
    folder = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"  # noqa: S108 - the peer's uid is checked
    return f"{folder}/interlock-{os.geteuid()}-{which:08x}"


def stamp() -> tuple[str, ...]:
    """What must be equal in both processes, so that a command has the same answer in either."""
    return (
        PACKAGE,
        sys.version,
        sys.prefix,
        repr(sys.flags),
        repr([(each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)]),
        sys.getfilesystemencoding(),
        os.environ.get("PYTHONPATH", ""),
    )


def hand_over(argv: Sequence[str]) -> int | None:
    """Let the warm process carry out a command; None if there is none, or it declines."""
    path = socket_path()
    if os.environ.get("INTERLOCK_WARM") == "off" or not os.path.exists(path):
        return None
    try:
        import _socket

        line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except (OSError, AttributeError):  # no such socket here
        return None
    try:
        child = _begun(line, path, argv)
    except (OSError, ValueError):  # nothing listens there, or a file is closed
        child = None
    if child is None:
        line.close()
        return None
    return _follow(line, child)


def _begun(line: socket, path: str, argv: Sequence[str]) -> int | None:
    """The process that carries out a command; None if the warm process declines."""
    import _socket

    line.settimeout(_PATIENCE)  # it may be stopped, by Ctrl-Z for example
    line.connect(path)
    if peer_uid(line) != os.geteuid() or line.recv(1) != READY:
        return None
    _send(line, argv)
    try:
        answer = line.recv(1)
    except TimeoutError:  # from now on it cannot begin; what it sent before counts
        line.shutdown(_socket.SHUT_RD)
        answer = line.recv(1)
    if answer != BEGUN:
        return None
    line.settimeout(None)
    return int.from_bytes(line.recv(LENGTH), "big")


def peer_uid(line: socket) -> int:
    """The user at the other end."""
    import _socket

    found = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER)
    return int.from_bytes(found[4:8], sys.byteorder)


def _send(line: socket, argv: Sequence[str]) -> None:
    import _socket

    mask = os.umask(0o077)
    os.umask(mask)
    ignored = [_signal.getsignal(each) == _signal.SIG_IGN for each in SIGNALS]
    head, texts = packed(stamp(), argv, os.environ, mask, ignored)
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    files = b"".join([file.to_bytes(4, sys.byteorder) for file in (0, 1, 2, folder)])
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)
    line.sendmsg([head], [rights])
    os.close(folder)
    line.sendall(texts)


def packed(
    own: Sequence[str],
    argv: Sequence[str],
    environment: Mapping[str, str],
    mask: int,
    ignored: Sequence[bool],
) -> tuple[bytes, bytes]:
    """The head and the texts of a request."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    texts = [text.encode("utf-8", "surrogateescape") for text in (*own, *argv, *variables)]
    joined = b"".join([text + b"\0" for text in texts])
    bits = sum([bit << number for number, bit in enumerate(ignored)])
    numbers = (len(joined), len(own), len(argv), len(variables), mask, bits)
    return b"".join([number.to_bytes(LENGTH, "big") for number in numbers]), joined


def _follow(line: socket, child: int) -> int:
    """Pass signals on to the child until it has ended; returns its exit status."""

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        try:  # noqa: SIM105 - contextlib would be one more import
            os.kill(child, signum)
        except ProcessLookupError:  # it has ended, and its status is on the way
            pass

    def pause(_signum: int, _frame: FrameType | None) -> None:
        pass_on(_signal.SIGSTOP, None)
        os.kill(os.getpid(), _signal.SIGSTOP)
        pass_on(_signal.SIGCONT, None)

    for signum in SIGNALS:
        if _signal.getsignal(signum) != _signal.SIG_IGN:
            _signal.signal(signum, pass_on)
    _signal.signal(_signal.SIGTSTP, pause)
    status = line.recv(1)
    if not status:
        sys.stderr.write(
            "interlock: the process that carried this out was killed; it may have been done:"
            " look before you repeat it\n"
        )
        return KILLED
    return status[0]
