"""One command, from its words to its exit status.

0 done, 1 an ordinary no, 2 bad input, 3 not allowed, 4 trouble with the store: the outcome's class
or the error's class says which.  Every error is one line that says what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from interlock import registry
from interlock.core.safe_text import error_fields, one_line, printable
from interlock.errors import BadInput, InterlockError, NotAllowedYet, StoreGone
from interlock.faces.cli.parse import Parsed, parse, split

if TYPE_CHECKING:
    from types import FrameType

    from interlock.client import Fleet

INTERRUPTED = 130
BROKEN_PIPE = 141
LOOK = 0.5
"""How often a stream with nothing to write checks that stdout still has a reader."""
_QUIET_FIELDS = {
    "KeyMade": "fingerprint",
    "KeyRotated": "fingerprint",
    "RequestSent": "request",
    "RequestAnswered": "result",
    "ValueShared": "revision",
    "SharedView": "value",
    "TokenMade": "token",
}
"""The field that ``--quiet`` leaves of an outcome, by the name of its class."""
_LONG = frozenset(
    ("task import", "store copy", "record verify", "record export", "metrics", "bench")
)
"""Commands that may take long, and report how far they are."""
_SHORT = 300
"""How many characters of an unwritten answer an error message shows."""
_CLOSED = "stdout is closed, so there is nowhere to answer; send it to /dev/null at least"


class Stopped(BaseException):
    """A signal asked the command to stop: withdraw, leave, and end with its status."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_status = 128 + signum


class Unwritten(OSError):
    """The answer could not be written; ``done`` is a summary of the change, if there was one."""

    done = ""


def run(argv: Sequence[str]) -> int:
    """Carry a command out, and return its exit status."""
    try:
        return _allowed(argv)
    except KeyboardInterrupt as interrupt:
        for text in getattr(interrupt, "__notes__", ()):  # what goes on without this command
            note(text)
        return INTERRUPTED
    except Stopped as stopped:
        return stopped.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last line of defence
        words = argv[: argv.index("--")] if "--" in argv else argv
        return failed(_explained(error, words), json="--json" in words)


def _allowed(argv: Sequence[str]) -> int:
    """Carry a command out, after a person at the terminal allowed what the work tree has."""
    try:
        return _run(argv)
    except (NotAllowedYet, StoreGone) as error:
        from interlock.faces.cli.allow import asked_after

        if not asked_after(error):
            raise
        return _run(argv)


_quiet = False
"""Whether ``--quiet`` was given."""


def failed(error: InterlockError, *, json: bool) -> int:
    """Report an error, once."""
    try:
        if json:
            write_json(error_fields(error))
            return error.exit_status
    except OSError:  # stdout has no reader; perhaps stderr has one
        pass
    message = one_line(str(error))
    mistakes = error.mistakes if isinstance(error, BadInput) else ()
    if len(mistakes) > 1:  # each on a line of its own, below what they have in common
        message = message.partition(": ")[0] + ":"
    _tell(message)
    if len(mistakes) > 1:
        sys.stderr.write("".join(f"  {one_line(each)}\n" for each in mistakes))
    return error.exit_status


def note(message: str) -> None:
    """Write a line to stderr, beside the answer; none with ``--quiet``."""
    if not _quiet:
        _tell(message)


def _clear_progress() -> None:
    """Remove a line of progress; only commands of ``_LONG`` have imported what makes one."""
    if (line := sys.modules.get("interlock.faces.cli.progress")) is not None:
        line.clear()


def _tell(message: str) -> None:
    _clear_progress()
    sys.stderr.write(f"interlock: {one_line(message)}\n")


def write_json(answer: object) -> None:
    """One object, one line."""
    from interlock.faces.json_output import encoded

    write(encoded(answer) + b"\n")


def write(data: bytes) -> None:
    """The answer: on a pipe, too, a reader has it at once."""
    if sys.stdout is None:
        raise OSError(_CLOSED)
    _clear_progress()
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(error.errno, error.strerror) from error


def answer(parsed: Parsed, outcome: object) -> int:
    """Show an outcome, and return its exit status."""
    try:
        _show(parsed, outcome)
    except Unwritten as error:
        error.done = _done(outcome)
        raise
    return int(getattr(outcome, "exit_status", 0))


def _show(parsed: Parsed, outcome: object) -> None:
    if parsed.common.json:
        write_json(outcome)
    elif (text := _asked_for(outcome) if parsed.common.quiet else _rendered(outcome)) is not None:
        write((text + "\n").encode("utf-8", "replace"))


def _done(outcome: object) -> str:
    """A summary of a change; empty if there is none, or if it is undone when it is not written."""
    from interlock.core.decision import Success
    from interlock.core.outcomes import Acquired, Listing
    from interlock.nouns.agents.session_rules import Joined
    from interlock.nouns.messages.query import Handed
    from interlock.nouns.tasks.task_outcomes import Checked
    from interlock.runtime.text import render

    if isinstance(outcome, Acquired | Checked | Joined | Listing):
        return ""
    if not isinstance(outcome, Success | Handed):
        return ""
    text = render(outcome).partition("\n")[0]
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _rendered(outcome: object) -> str:
    from interlock.runtime.text import render

    return render(outcome, colour=colourful(), width=_terminal_width())


def _asked_for(outcome: object) -> str | None:
    """What ``--quiet`` leaves of an answer; the exit status says the rest.

    The token of a grant, the id of a new task, message, request or plan, the answer to a question
    or a request, a shared value or the revision of a new one, the fingerprint of a new key, the
    line that sets a session; and all of an answer that is no outcome, as a list is.
    """
    from interlock.core.decision import Outcome
    from interlock.core.outcomes import Granted, Listing
    from interlock.nouns.agents.session_rules import Joined
    from interlock.nouns.messages.message import Sent
    from interlock.nouns.messages.query import QueryAnswered
    from interlock.nouns.pipelines.pipeline import PipelineStarted
    from interlock.nouns.tasks.task_outcomes import Imported, Published, TaskCompleted, TaskFailed

    kind = type(outcome).__name__
    if (field := _QUIET_FIELDS.get(kind)) is not None:  # to import them would take too long
        return _plain(getattr(outcome, field))
    match outcome:
        case (
            Granted(token=token)
            | TaskCompleted(next=Granted(token=token))
            | TaskFailed(next=Granted(token=token))
        ):
            return None if token is None else str(token)
        case (
            Published(task=id_)
            | Sent(message=id_)
            | Imported(plan=id_)
            | PipelineStarted(pipeline=id_)
        ):
            return printable(id_)
        case QueryAnswered(answer=answer):
            return _plain(answer)
        case Outcome() if not isinstance(outcome, Joined | Listing):
            return None
        case _:
            return _rendered(outcome)


def _plain(value: object) -> str:
    """A text as it is, any other value as JSON."""
    from interlock.faces.json_output import encoded

    return printable(value) if isinstance(value, str) else encoded(value).decode()


def answer_to(you: str, parsed: Parsed, outcome: object) -> int:
    """Show an outcome, with a note if the caller's own agent is the holder."""
    status = answer(parsed, outcome)
    if status == 1 and you and not parsed.common.json:
        from interlock.faces.cli.hints import own_grant

        if hint := own_grant(parsed.request, outcome, you):
            note(hint)
    return status


def colourful() -> bool:
    """Whether stdout is a terminal that wants colours."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def _terminal_width() -> int | None:
    """The columns of the terminal; None if stdout is none, since a program wants whole lines."""
    if not sys.stdout.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said[:6]) > 0:
        return int(said[:6])
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def stoppable() -> None:
    """Make SIGTERM and SIGHUP raise Stopped from here on, so that nothing is left behind."""
    import signal

    def stop(signum: int, _frame: FrameType | None) -> None:
        raise Stopped(signum)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, stop)


def is_read() -> bool:
    """Whether stdout may still have a reader: the other end of a pipe is open."""
    import select

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(flags & select.POLLERR for _, flags in poll.poll(0))


def _run(argv: Sequence[str]) -> int:
    if sys.stdout is None:  # better no grant than one whose token no caller gets
        raise _Internal(_CLOSED)
    global _quiet  # noqa: PLW0603 - of the one command that this process carries out
    _quiet = False
    name, words = split(argv)
    try:
        operation = registry.find(name)
    except KeyError:
        from interlock.faces.cli.help import without_operation

        if name == "help":
            return _run([*words, "--help"])
        write(without_operation(name, words).encode() + b"\n")
        return 0
    parsed = parse(operation, words)
    if parsed.common.help:
        from interlock.faces.cli.help import operation_help

        write(operation_help(parsed.operation).encode() + b"\n")
        return 0
    _quiet = parsed.common.quiet
    if parsed.common.verbose:
        _log(parsed.common.verbose)
    if operation.name in _LONG and not _quiet:
        from interlock.faces.cli import progress

        with progress.shown():
            return _carried_out(parsed)
    return _carried_out(parsed)


def _carried_out(parsed: Parsed) -> int:
    if parsed.operation.in_shell:
        carry_out: Callable[[Parsed], int] = registry.load(parsed.operation.in_shell)
        return carry_out(parsed)
    return _table(parsed)


def _table(parsed: Parsed) -> int:
    """An operation that is a request and an outcome."""
    from interlock.faces.cli.connect import connected

    if parsed.joins:
        stoppable()
    with connected(parsed) as fleet:
        outcome = fleet.act(parsed.request)
        you = fleet.context.identity.actor.agent
        try:
            # before the end of the session, which may take long or be interrupted
            return answer_to(you, parsed, outcome)
        except OSError as error:
            raise _given_back(fleet, outcome, error) from error


def _given_back(fleet: Fleet, outcome: object, error: OSError) -> Exception:
    """Release the grants whose tokens could not be written; returns the error to end with."""
    from interlock.faces import give_back

    grants = give_back.unused_grants(outcome)
    if not grants:
        return error
    kind = give_back.things_of(grants[0])[0]
    things = [name for grant in grants for name in give_back.things_of(grant)[1]]
    what = f"{kind} {', '.join(things)}".removeprefix("things ")
    was = "was" if len(things) == 1 else "were"
    unwritten = f"the answer could not be written ({error.strerror})"
    try:
        give_back.release(fleet, grants)
    except InterlockError as trouble:
        return _Internal(f"{unwritten}, and {what} stays held until its ttl ends: {trouble}")
    if isinstance(error, BrokenPipeError) or (isinstance(error, Unwritten) and error.done):
        note(f"{unwritten}, so {what} {was} released")
        return error
    again = "send stdout elsewhere, then retry"
    return _Internal(f"{unwritten}, so {what} {was} released; {again}")


def _explained(error: Exception, words: Sequence[str]) -> InterlockError:
    """Any error as one that says what to do; an unexpected one says how to see its traceback."""
    if isinstance(error, InterlockError):
        return error
    if isinstance(error, UnicodeError):
        return BadInput("a word is not UTF-8; write it in UTF-8")
    if isinstance(error, Unwritten):
        unwritten = f"the answer could not be written ({error.strerror})"
        if error.done:
            return _Internal(f"{unwritten}, but it was done: {error.done}; do not repeat it")
        return _Internal(f"{unwritten}; send stdout elsewhere")
    message = str(error)
    if not isinstance(error, OSError):
        message = f"unexpected {type(error).__name__}: {message}"
    if any(word.startswith("-vv") for word in words) or list(words).count("-v") > 1:
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            sys.stderr.write(printable(line) + "\n")
        return _Internal(message)
    return _Internal(f"{message}; run again with -vv for the traceback")


class _Internal(InterlockError):
    """A bug of Interlock, or an error of the operating system."""

    code = "internal"


def _log(verbose: int) -> None:
    import logging

    class PrintableFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return "\n".join(map(printable, super().format(record).split("\n")))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("interlock: %(message)s"))
    level = logging.DEBUG if verbose > 1 else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
