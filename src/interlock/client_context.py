"""One client at one store: its identity, its session, and the services that it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.decision import Write
from interlock.errors import BadInput, Lapsed, StoreClosed
from interlock.nouns.grants.service import GrantService
from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import TRACE, Actor, Identity
from interlock.runtime.keeper import Keeper, Lease
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op, Pause
from interlock.store import Store

if TYPE_CHECKING:
    from interlock.nouns.agents.report_service import StatusReporter
    from interlock.nouns.agents.session_service import Sessions
    from interlock.nouns.requests.service import RequestService
    from interlock.nouns.swarms.bus import Bus
    from interlock.nouns.swarms.registry_service import SwarmRegistry
    from interlock.nouns.swarms.shared_service import SharedService
    from interlock.nouns.tasks.claim_reports import ClaimReporter
    from interlock.nouns.tasks.service import TaskService
    from interlock.runtime.outage import OutageRetry

Moment: TypeAlias = str | float | datetime
T = TypeVar("T")
GRANT_TTL = 900.0
SESSION_TTL = 30.0
BUS_PATIENCE = 2.0
"""Seconds that a call goes on asking a bus that is away."""
_MEANWHILE = 0.02
"""Seconds after which a caller looks again whether another one has joined."""


class Context:
    """One client at one store: who it is, and the services it talks to."""

    def __init__(
        self,
        store: Store,
        agent: str | None,
        trace: str,
        runner: Runner | None,
        *,
        settings: Settings | None = None,
        grant_ttl: float | None = None,
        caller: str = "",
        no_retry: bool = False,
        person: Callable[[], str] = str,
    ) -> None:
        self.store = self.opened = store
        """The store; once a client is closed that does not own it, one that refuses all calls."""
        self.shares_store = False
        """Whether the store belongs to the caller, and stays open when the client is closed."""
        self.looks = True
        """Whether a question about a guard looks at this host; not one from another host."""
        self.no_retry = no_retry
        """Whether waits end at once when the store does not answer."""
        self.settings = settings or Settings()
        self._caller = caller
        self._person = person
        """The name of the person who acts, if the face has seen that it is that person."""
        self._grant_ttl = grant_ttl
        self.runner = runner or Runner(store)
        self.runner.settings = self.settings
        self.grants = GrantService(self.runner)
        self.housekeeping = ClientHousekeeping(self.runner, self.store, self.settings)
        self.keeper = Keeper(self.runner, self.store, self.grants, self.housekeeping)
        self.client: Any = None
        """The client that we belong to, if there is one."""
        self.put_off: dict[int, Callable[[], None]] = {}
        """What a thread has to do before its next call: the end of a claim that a loop put off."""
        self.loops: set[Callable[[], None]] = set()
        """What the end of the client has to do for each loop of a worker that runs."""
        self.on_due: Callable[[], None] | None = None
        """Wakes the thread or task that runs the keeper, and starts it if need be."""
        self.session_lease: Lease | None = None
        self._rejoining = False
        self.began = False
        """Whether our session began with us, and so ends with us."""
        self.left = False
        """Whether we ended our session ourselves: no other one follows it."""
        self._over: Lapsed | None = None
        """Why we may not act: the session that we inherited is over."""
        self._agent = None
        if agent is not None:
            self._agent = validate.own_agent_name(agent, proven=self._proven(agent))
        self._trace = validate.name(trace, "trace") if trace else ""
        self.trace = self._trace or self.runner.new_id("trc")
        self.identity = self._identity(self.runner.new_id("ses"))
        # The services below give the object a dict of its own.  One from the beginning, which
        # shares no keys with other objects, is the kind in which Python remembers places.
        self.__dict__ = {**self.__dict__}

    @cached_property
    def sessions(self) -> Sessions:
        """Sessions on this store."""
        from interlock.nouns.agents.session_service import Sessions

        return Sessions(self.runner)

    @cached_property
    def tasks(self) -> TaskService:
        """Tasks on this store."""
        from interlock.nouns.tasks.service import TaskService

        tasks = TaskService(self.runner, self.grants, self.settings)
        self.housekeeping.passes["tasks"] = tasks.forget
        return tasks

    @cached_property
    def pulse(self) -> StatusReporter:
        """What this client reports about itself."""
        from interlock.nouns.agents.report_service import StatusReporter, paces_from

        actor = self.joined_identity().actor
        pulse = StatusReporter(self.runner, actor, paces_from(self.settings), self.wake)
        self.keeper.add_job(pulse)
        return pulse

    @cached_property
    def claim_reports(self) -> ClaimReporter:
        """What this client reports about the tasks that it works on."""
        from interlock.nouns.tasks.claim_reports import ClaimReporter

        reporter = ClaimReporter(self)
        self.keeper.add_job(reporter)
        return reporter

    @cached_property
    def bus(self) -> Bus:
        """The second store of a swarm, which is opened when it is first needed."""
        from interlock.nouns.swarms.bus import Bus

        return Bus(self.runner, StoreOpener(), self.settings)

    @cached_property
    def requests(self) -> RequestService:
        """Requests between our swarm and others."""
        from interlock.nouns.requests.service import RequestService

        requests = RequestService(self.runner, self.bus, self.tasks, self.swarms)
        if self.client is not None:
            keep = self.client.keep_doing
            requests.cleanup.start = partial(keep, "interlock-tidy", requests.cleanup.run)
            requests.waits.start = partial(keep, "interlock-waits", requests.waits.watch_home)
        return requests

    @cached_property
    def swarms(self) -> SwarmRegistry:
        """What this client knows of other swarms."""
        from interlock.nouns.swarms.registry_service import SwarmRegistry

        return SwarmRegistry(self)

    @cached_property
    def shared(self) -> SharedService:
        """Values that our swarm shares with others."""
        from interlock.nouns.swarms.shared_service import SharedService

        return SharedService(self)

    def share_requests(self, other: Context) -> None:
        """Use the bus and the requests of another client of this process at the same store.

        A process with many agents then has one connection to the bus and one follower there, and
        posts and takes in together for all of them.  The clients are closed together.
        """
        self.__dict__["bus"] = other.bus
        self.__dict__["requests"] = other.requests

    def outage(self, about: str) -> OutageRetry:
        """What takes a wait through an outage of the store."""
        from interlock.runtime.outage import OutageRetry

        return OutageRetry(self, about)

    def wake(self) -> None:
        """The keeper has something to do."""
        if self.on_due is not None:
            self.on_due()

    def begin(self, session: str | None, ttl: float | None, *, inherited: bool = False) -> Op[None]:
        """Resume the session that was named, or join if we have a name and are to live by a ttl.

        An ``inherited`` session comes from the environment.
        """
        if session is not None and inherited:
            yield from self._inherit(session)
        elif session is not None:
            yield from self.resume(session)
        elif self._agent is not None and ttl is not None:
            yield from self.join(ttl)

    def join(self, ttl: float) -> Op[None]:
        """Begin a session of our own, and keep it alive."""
        yield from self._joined_as(self.me().actor, ttl)

    def _joined_as(self, actor: Actor, ttl: float) -> Op[None]:
        ttl = validate.ttl(ttl, self.runner.capabilities.min_ttl)
        sent = self.runner.clock.monotonic()
        yield from self.sessions.join(actor.agent, ttl=ttl, session=actor.session, trace=self.trace)
        self.identity = Identity(actor=actor, session_ttl=ttl, joined=True, caller=self._caller)
        write = Write(keys.live(actor.session), {"agent": actor.agent}, ttl)
        self.session_lease = self.keeper.keep(write, sent)
        self.began = True

    def _inherit(self, session: str) -> Op[None]:
        """Speak for the session of the environment, and keep it alive as long as we are here.

        If it is over we may look but not act, as a command may.  A program has threads and may run
        twice, so only a call that carries a grant extends it: otherwise two would hold one lock.
        """
        sent = self.runner.clock.monotonic()
        try:
            yield from self.resume(session)
        except Lapsed as error:
            self._agent, self._over = None, error
            return
        self.identity = replace(self.identity, whole_session=False)
        actor = self.identity.actor
        write = Write(keys.live(session), {"agent": actor.agent}, self.identity.session_ttl)
        self.session_lease = self.keeper.keep(write, sent)

    def rejoins(self, identity: Identity) -> bool:
        """Whether a new session may follow an expired one: it was our own."""
        return not self.left and (self.began or self.identity is not identity)

    def rejoin(self, identity: object) -> Op[None]:
        """Begin a new session under the same name, unless the client already did."""
        while self._rejoining and self.identity is identity:
            yield Pause(self.runner.capabilities.allow(_MEANWHILE))
        lease = self.session_lease
        if self.identity is not identity or lease is None:
            return
        self._rejoining = True
        try:
            actor = replace(self.identity.actor, session=self.runner.new_id("ses"))
            yield from self._joined_as(actor, self.identity.session_ttl)
        finally:
            self._rejoining = False
        lease.lose()
        self.keeper.drop(lease)
        if "pulse" in self.__dict__:
            self.pulse.follow(self.identity.actor)
        self.wake()

    def resume(self, session: str) -> Op[None]:
        """Act for a session that another process began, and renew it."""
        validate.name(session, "session")
        found = yield from self.sessions.find(session)
        if found is not None and self._agent not in (None, found.agent):
            raise _contradiction(session, found.agent, str(self._agent))
        renewed = yield from self.sessions.beat(session)
        if found is None or not renewed:
            raise lapsed(session)
        self._agent = validate.free_agent_name(found.agent, proven=self._proven(found.agent))
        actor = Actor(found.agent, session, self.trace)
        self.identity = Identity(
            actor=actor,
            session_ttl=found.ttl,
            joined=True,
            whole_session=True,
            caller=self._caller,
            listed=True,
        )

    def leave(self) -> Op[Any]:
        """End our session; its tasks go back to the queue first."""
        actor = self.me().actor
        self.left = True
        tasks = yield from self.sessions.works_on(actor)
        released = (yield from self.tasks.leave(actor)) if tasks else ()
        left = yield from self.sessions.leave(
            actor, self.grants.own.pools() if self.began else None
        )
        if released and left:  # its end, not that it had expired
            return replace(left, released=(*released, *left.released))
        return left

    def close_store(self) -> None:
        """Close the store if it is ours; else only this client is refused from now on."""
        if self.shares_store:
            self.store = cast("Store", _ClosedClient(self.opened))
        else:
            self.store.close()

    async def close_store_async(self) -> None:
        """As ``close_store``, in an event loop."""
        if self.shares_store:
            self.close_store()
        else:
            await self.store.close_async()

    def check_open(self) -> None:
        """Raise if the client was closed, though others go on with its store."""
        if self.store is not self.opened:
            raise _closed()

    def terms(
        self,
        settings: Mapping[str, float],
        ttl: float | str | None,
        max_hold: float | str | None,
    ) -> tuple[float | None, float | None]:
        """What a grant lives by: as the call says, else the settings, else ourselves.

        No ttl means by our session; one that ends with this command has a ``grant_ttl`` instead.
        """
        if settings:
            ttl = settings.get("ttl") if ttl is None else ttl
            max_hold = settings.get("max_hold") if max_hold is None else max_hold
        if ttl is None:
            ttl = self._grant_ttl if self.identity.joined else self._grant_ttl or GRANT_TTL
        if ttl is None and max_hold is None:
            return None, None
        least = self.runner.capabilities.min_ttl
        return (
            None if ttl is None else validate.ttl(ttl, least),
            None if max_hold is None else validate.ttl(max_hold, least, "maximum hold"),
        )

    def checked_wait(self, wait: float | str) -> float:
        """See that we may ask for something, and how long we would wait for it."""
        identity, lease = self.me(), self.session_lease
        # Even if the store still has it.  A store that is gone, or was moved, says so itself.
        if lease is not None and not lease.alive() and not self.store.missing:
            raise Lapsed(f"session {identity.actor.session} was not renewed in time; connect again")
        patience = 0.0 if wait == 0 and wait is not False else validate.wait_time(wait)
        if patience and not identity.joined:
            raise BadInput("a place in the queue needs a session; connect with join=True to wait")
        return patience

    @property
    def agent(self) -> str | None:
        """The name that we act under, if we have one."""
        return None if self._over is not None else self._agent

    def me(self) -> Identity:
        """Our identity; without a name, an error that says how to give one."""
        if self._over is not None:
            raise self._over
        if self._agent is None:
            raise BadInput(
                "who are you? say connect(agent=NAME), --agent NAME, or set INTERLOCK_AGENT"
            )
        return self.identity

    def joined_identity(self) -> Identity:
        """Who we are, in a session that lives; an error that says how to get one otherwise."""
        if not self.me().joined:
            raise BadInput(
                "this needs a session: connect with join=True; in a shell"
                ' eval "$(interlock agent join --agent NAME)"'
            )
        return self.identity

    @property
    def purpose(self) -> str:
        """The trace that the caller named; none if we made one up."""
        return TRACE.get() or self._trace

    def actor_for(self, agent: str) -> Actor:
        """In whose name something is done for an agent: ours if we have one, else its own."""
        return self.identity.actor if self._agent is not None else Actor(agent, "", self.trace)

    def _proven(self, agent: str) -> str:
        """The name of the person who acts, if this is the name of a person."""
        return self._person() if str(agent).startswith(validate.PERSON) else ""

    def _identity(self, session: str) -> Identity:
        return Identity(actor=Actor(self._agent or "", session, self.trace), caller=self._caller)


class StoreOpener:
    """How a client opens another store; the engine is imported then."""

    @staticmethod
    def place(url: str) -> tuple[str, str]:
        """The URL by which any process finds it, and how to show it, without a password."""
        import os

        from interlock.stores import file_of, is_network, shown

        if is_network(url):
            return url, shown(url)
        path = file_of(url)
        whole = url if path is None else os.path.abspath(path)
        return whole, whole

    @staticmethod
    def blocking(url: str, *, create: bool) -> Store:
        """Open it."""
        from interlock.stores import open_store

        return _brief(open_store(url, create=create))

    @staticmethod
    async def awaited(url: str, *, create: bool) -> Store:
        """Open it in an event loop."""
        from interlock.stores import open_store_async

        return _brief(await open_store_async(url, create=create))


class _ClosedClient:
    """The store of a client that was closed, while others go on with it."""

    outage = ""
    missing = False

    def __init__(self, store: Store) -> None:
        self.capabilities = store.capabilities

    def __getattr__(self, _: str) -> NoReturn:
        raise _closed()


def _closed() -> StoreClosed:
    return StoreClosed("this client was closed; connect again")


def _brief(store: Store) -> Store:
    """A bus is not worth a long wait: what a sender cannot post waits in its outbox."""
    if hasattr(store, "patience"):  # an engine across a network
        store.patience = min(store.patience, BUS_PATIENCE)
    return store


def lapsed(session: str) -> Lapsed:
    """A session that is over, and what to do."""
    return Lapsed(
        f"session {session} is over; for a new one:"
        ' eval "$(interlock agent join --agent NAME)"; for none: unset INTERLOCK_SESSION'
    )


def _contradiction(session: str, owner: str, named: str) -> BadInput:
    from interlock.core.safe_text import foreign

    its = foreign(owner)
    how = validate.command(f"interlock run --agent {validate.quote(named)} -- CMD")
    return BadInput(
        f"session {session} belongs to {its}, not to {foreign(named)}; to act under that name,"
        f" begin a session of its own: {how}, or"
        f' eval "$(interlock agent join --agent {validate.quote(named)})"; to act as {its}, leave'
        " the other name out (--agent, INTERLOCK_AGENT)"
    )
