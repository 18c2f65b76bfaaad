"""The session in which a command acts.

With INTERLOCK_SESSION (or ``--session``) the command acts in that session, and renews it.  Without,
it has a session of its own, which is stored only if the command has to wait in a queue.  Its grants
live by their ttl, since they outlive the command.

Commands of a shell follow one another, so deadlock detection sees them as one caller: that of the
``run`` around them (INTERLOCK_CALLER), else their session, else the agent's name on this host.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from interlock import store_location, stores
from interlock.core import keys, validate
from interlock.core.safe_text import foreign, printable
from interlock.core.wait import AGENT_CALLER, NAMED_CALLER, SESSION_CALLER
from interlock.errors import BadInput, Lapsed, NotAllowed, StoreMissing
from interlock.faces.cli.command import note
from interlock.faces.cli.parse import Common, Parsed
from interlock.stores import file_of, is_network

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.store import Store, StoreMark


OF_AGENTS = (
    "CLAUDE_CODE_SESSION_ID", "CLAUDECODE", "CODEX_THREAD_ID", "CODEX_SANDBOX", "CURSOR_AGENT",
    "GEMINI_CLI", "OPENCODE", "COPILOT_AGENT_SESSION_ID",
)  # fmt: skip
"""Variables that coding agents set for the commands that they run."""
_CHECK = "check the name"


class CommandIdentity:
    """The agent and session of a command, from its options and the environment."""

    def __init__(self, common: Common, *, anew: bool = False) -> None:
        if anew and common.session is not None:
            raise BadInput("this begins a session of its own; leave --session out")
        # A command that begins a session ignores one in the environment, which may have ended.
        self.session = None if anew else _either(common.session, "INTERLOCK_SESSION")
        # A name that is not that of the session's agent is refused when the session is resumed.
        # An option overrides the environment: --session also overrides a name that is set there.
        self.agent = common.agent if common.session else _either(common.agent, "INTERLOCK_AGENT")
        inside = os.environ.get("INTERLOCK_CALLER") if self.session else None
        self.caller = NAMED_CALLER + _inside(inside) if inside else ""
        self.store = common.store
        if common.store == "":
            raise BadInput("--store is empty; give a path, or leave it out")
        if common.store and common.store.startswith("memory:"):
            raise BadInput("memory: is gone when this command ends; name a file")
        trace = _either(common.trace, "INTERLOCK_TRACE")
        self.trace = validate.name(trace, "trace") if trace else ""
        self.key = common.key


def person_name() -> str:
    """The name under which the person at this machine acts."""
    import getpass

    try:
        return f"person:{getpass.getuser()}"
    except (OSError, KeyError):  # a container may run under a number without a name
        return f"person:{os.getuid()}"


def proven_person() -> str:
    """The name of the person who runs this command; empty if a coding agent does."""
    return "" if agent_variable() else person_name()


def agent_variable() -> str:
    """The variable of a coding agent that runs this command; empty if none is set."""
    return next((name for name in OF_AGENTS if os.environ.get(name)), "")


def _inside(caller: str) -> str:
    """The caller that a command acts for, which becomes part of a key."""
    return "/".join(map(keys.encode, validate.name(caller, "INTERLOCK_CALLER").split("/")))


def connected(parsed: Parsed, *, anew: bool = False) -> Fleet:
    """A client for this command; ``anew`` for a command that begins a session."""
    fleet = _connected(parsed, CommandIdentity(parsed.common, anew=anew), named=not anew)
    try:
        tell(parsed, fleet)
        meet_store(parsed, fleet.store)
    except BaseException:
        fleet.close()
        raise
    if parsed.joins:
        speak_up()
    return fleet


def staying(parsed: Parsed) -> Fleet:
    """A client for a command that runs for long: it keeps its session alive.

    It begins no session, since that would end with the command, and its agent would be absent.
    """
    fleet = connected(parsed)
    speak_up()
    return _kept(fleet) if CommandIdentity(parsed.common).session else fleet


def opened(
    url: str | None,
    *,
    create: bool = False,
    filling: bool = False,
    **options: Any,  # noqa: ANN401
) -> Fleet:
    """A client of the store that was named, or of the one that is found, as ``connect`` does.

    Few commands ``create`` the file that was named: a mistyped name would be a second, empty store.
    ``filling`` is for a look at a store that is an incomplete copy.
    """
    from interlock.client import begun

    place = store_location.named_store(url, create=create) if url else store_location.find_store()
    if is_network(place):
        hush()
    new = create and url is not None
    store = store_location.open_place(place, create=new, filling=filling)
    fleet = begun(store, person=proven_person, **options)
    fleet.context.runner.via = "cli"
    return fleet


def allow_store(path: str) -> None:
    """Put a store that a command made on the list of what this user allowed."""
    from interlock import work_tree_list

    try:
        work_tree_list.allow_store(path)
    except NotAllowed as error:
        note(
            f"{error}; until a person has allowed this store, commands find it only by its name:"
            f" INTERLOCK_STORE={validate.quote(os.path.abspath(path))}"
        )


def meet_store(parsed: Parsed, store: Store) -> None:
    """A moved store shows old data, and a new one shows nothing: its name may be wrong."""
    operation = parsed.operation
    if operation.reads:
        _tell_if_moved(store)
    if not (operation.reads or operation.takes):
        tell_if_new(store)
    elif not operation.waits(parsed.request):
        require_made(store)
    elif is_new(store):
        note(f"there is no store at {_place(store)} yet; {_CHECK}, this waits for one")


def is_new(store: Store) -> bool:
    """Whether nothing was ever written to a store across a network: its name may be mistyped."""
    return not getattr(store, "made", True)


def require_made(store: Store) -> None:
    """Refuse a store that was never made: it would look like a fleet in which all is well."""
    if is_new(store):
        make = validate.command(f"interlock init --store {validate.quote(_place(store))}")
        raise StoreMissing(f"there is no store at {_place(store)}; {_CHECK}, or make one: {make}")


def tell_if_new(store: Store) -> None:
    """Say that a command makes a store in passing."""
    if is_new(store):
        note(f"there was no store at {_place(store)}, so this begins one; {_CHECK}")


def _place(store: Store) -> str:
    return printable(str(getattr(store, "where", "")))


def _tell_if_moved(store: Store) -> None:
    """A moved store shows old data; the store itself refuses changes."""
    mark: StoreMark | None = getattr(store, "mark_at_opening", None)
    if mark is not None and mark.state == "moved":
        note(f"this store was moved to {foreign(mark.place)}; what it shows is as old as that")


def hush() -> None:
    """Suppress the log of a network store's client unless ``-v`` was given.

    Else an outage would be reported twice: by the log, and by the error in the end.
    """
    import logging

    if not logging.getLogger().handlers:
        logging.getLogger("interlock").addHandler(logging.NullHandler())


def speak_up() -> None:
    """Report outages of the store on stderr from here on, for a command that runs for long."""
    if "logging" not in sys.modules:  # a local store has no outages
        return
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(record.getMessage())

    if not logging.getLogger().handlers:
        logging.getLogger("interlock").addHandler(Notes(logging.WARNING))


def shown(url: str) -> str:
    """A store's URL for display, without its password; raises BadInput for a bad URL."""
    if not is_network(url):
        file_of(url)
        return url
    return stores.shown(url)


def url_of(store: Store, given: str | None) -> str:
    """The URL with which a process in any folder finds the same store; it may have a password.

    ``given`` is the value of ``--store``.
    """
    known = getattr(store, "url", "") or getattr(store, "path", "")
    return str(known) or given or store_location.find_store()


def tell(parsed: Parsed, fleet: Fleet) -> None:
    """With ``-v``: log the store and the agent."""
    if parsed.common.verbose:
        import logging

        actor = fleet.context.identity.actor
        place = shown(url_of(fleet.store, parsed.common.store))
        log = logging.getLogger("interlock")
        log.info("store %s, agent %s", printable(place), printable(actor.agent or "-"))
        log.debug("session %s, trace %s", actor.session, actor.trace)


def _connected(parsed: Parsed, identity: CommandIdentity, *, named: bool) -> Fleet:
    """A client for this agent or session; ``named`` if it must have a name."""
    operation = parsed.operation
    common: dict[str, Any] = {"url": identity.store, "trace": identity.trace}
    common["create"] = operation.creates
    common["no_retry"] = parsed.common.no_retry
    common["key"] = identity.key
    common["filling"] = operation.name == "store info"
    if operation.needs == "session" and not identity.session:
        raise BadInput("which session? set INTERLOCK_SESSION ('interlock agent join' prints it)")
    unnamed = not identity.session and not identity.agent
    if named and operation.needs == "agent" and unnamed:
        raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
    if identity.session:
        try:
            fleet = opened(
                agent=identity.agent,
                session=identity.session,
                caller=identity.caller or SESSION_CALLER,
                **common,
            )
        except Lapsed:
            if operation.needs != "store":
                raise
        else:
            return _kept(fleet) if parsed.joins else fleet
    if not parsed.joins:
        return opened(agent=identity.agent, join=False, caller=_named(), **common)
    from interlock.client_context import GRANT_TTL

    return opened(agent=identity.agent, grant_ttl=GRANT_TTL, caller=_named(), **common)


def _named() -> str:
    """The caller for commands without a session: the agent's name on this host."""
    return AGENT_CALLER + os.uname().nodename


def _kept(fleet: Fleet) -> Fleet:
    """Renew the session of this command while the command runs."""
    from interlock.core import keys
    from interlock.core.decision import Write

    context = fleet.context
    actor = context.me().actor
    write = Write(keys.live(actor.session), {"agent": actor.agent}, context.identity.session_ttl)
    context.keeper.keep(write, context.runner.clock.monotonic())
    fleet.keep()
    return fleet


def _either(given: str | None, variable: str) -> str | None:
    """The option, else the environment, where an empty value means unset."""
    return os.environ.get(variable) or None if given is None else given
