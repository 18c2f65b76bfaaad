"""Why a task does not make progress: its needs down to the last one, and who can clear that.

A task that a guard keeps is explained by the condition that fails: the guard is checked again, as a
claim would, and nothing is written.  No host looks at the outside for an explanation.

A blocked task hangs on one unmet need, which may hang on another.  That chain is followed to its
end, however long it is.  The other unmet needs are counted; the first few are named and followed,
beginning with needs that ended without being complete.  Of all ends the answer names the one first
that is least likely to clear by itself: a dead letter before a task that no worker takes, and that
before a running one.

Only reports of agents say what they can do.  Where no agent reports, a worker may still come that
can do a task; so nothing is said about that then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.validate import ALL_ABILITIES, command, quote, span
from interlock.core.wait import caller_name
from interlock.errors import StoreDamaged
from interlock.nouns.agents.session_service import Sessions, decode_session
from interlock.nouns.agents.views import session_overview
from interlock.nouns.grants.why import WaitsOfCallers, meanwhile, with_ended
from interlock.nouns.tasks.task import BATCH, UNSUCCESSFUL, Spec, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_reader import decode_status
from interlock.nouns.tasks.views import DAMAGED, TaskSnapshot, read_snapshots
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED, Need, Why
from interlock.steps import Op, Read
from interlock.store import ALIVE, Item, Range

if TYPE_CHECKING:
    from interlock.client_context import Context

NEEDS_SHOWN = 20
"""The most unmet needs in the answer, with the needs of needs."""
FOLLOWED = 100_000
"""The longest chain that is followed."""
BELOW = 1000
"""The most needs that are read of a task that is itself a need; of the first task, all are."""
COUNTED = 1000
"""The most ready tasks that are counted before a task."""
_ENDED = (*UNSUCCESSFUL, DAMAGED)
_CHAIN_SHOWN = 4
"""The most tasks of a chain that are named one after the other."""


def task(context: Context, name: str) -> Op[Why]:
    """Explain a task."""
    explanations = TaskExplanations(context.runner, context.sessions)
    found = yield from explanations.task(validate.task_id(name))
    return (yield from with_ended(found, context.runner.clock.wall()))


class TaskExplanations:
    """Explanations, as generators for a driver."""

    def __init__(self, runner: Runner, sessions: Sessions) -> None:
        self._runner = runner
        self._sessions = sessions
        self._able: Able = {}

    def task(self, id_: str) -> Op[Why]:
        """What keeps this task from being done."""
        snapshot = (yield from read_snapshots(self._runner, [id_]))[id_]
        if snapshot.hangs or (snapshot.batch and snapshot.state == "blocked"):
            return (yield from self._blocked(snapshot))
        yield from self._read_abilities([snapshot])
        found, more = (yield from self._at_gate(snapshot)) or self._explain(snapshot), ""
        if snapshot.claim is not None and snapshot.alive:
            more = yield from self._where(snapshot, snapshot.claim)
            more += yield from self._evidence(snapshot)
        elif snapshot.state == "pending" and not found.blocked:
            more = (yield from _before(snapshot)) + (yield from self._takers(snapshot))
            found = replace(found, clear=f"claim it: interlock task claim {quote(id_)}")
        waits = yield from self._meanwhile(snapshot)
        return Why(
            thing=f"task/{id_}",
            state=snapshot.state,
            blocked=found.blocked,
            because=found.says + more,
            clear=found.clear,
            by=found.by,
            since=found.since,
            expires_in=found.expires_in,
            meanwhile=(*waits.lines, *found.meanwhile),
            guard=found.guard,
            leaf=found.leaf,
            leads_to=(*waits.leads_to, *found.leads_to),
            cycle=found.cycle or waits.cycle,
        )

    def _at_gate(self, snapshot: TaskSnapshot) -> Op[Explanation | None]:
        """Explain a task by the condition of its guard that does not hold now."""
        if snapshot.status is None or not snapshot.status.guard:
            return None
        from interlock.nouns.guards.gate_cycles import cycle_from, cycle_text
        from interlock.nouns.guards.hosts import who_looks
        from interlock.nouns.tasks import gates

        refusal = yield from gates.refusal_now(self._runner, snapshot.status.guards)
        if refusal is None:
            return Explanation(
                says="its guards pass now; the next worker or 'interlock maintain' finds that",
                clear=f"claim it: interlock task claim {quote(snapshot.task)}",
                since=snapshot.status.since,
                rank=2,
            )
        gate, at = (yield from gates.gate_of(snapshot.task)), refusal.hindrance
        same = gate is not None and (gate.guard, gate.leaf) == (at.guard, at.leaf)
        cycle = yield from cycle_from(f"task/{snapshot.task}")
        checked = f"; it is counted again in {span(snapshot.left)}" if snapshot.left else ""
        return Explanation(
            says=f"guard {foreign(at.guard)}:"
            f" {f'{foreign(at.leaf)}: ' if at.leaf else ''}{at.reason}{checked}",
            clear=", ".join(at.acts) or f"see {command(f'interlock guard show {quote(at.guard)}')}",
            by=", ".join(at.by),
            since=gate.since if gate is not None and same else snapshot.status.since,
            rank=4 if refusal.result == "unknown" else 1,
            guard=at.guard,
            leaf=at.leaf,
            leads_to=(at.thing,) if at.thing else (),
            cycle=cycle,
            meanwhile=(
                *((cycle_text(cycle),) if cycle else ()),
                *(yield from who_looks(at.facts)),
            ),
        )

    def _meanwhile(self, snapshot: TaskSnapshot) -> Op[WaitsOfCallers]:
        """The waits of the worker that has the task."""
        claim = snapshot.claim
        if claim is None or not snapshot.alive:
            return WaitsOfCallers()
        worker = caller_name(claim.agent, claim.session, claim.caller)
        return (yield from meanwhile(self._runner, {worker: claim.agent}))

    def _evidence(self, snapshot: TaskSnapshot) -> Op[str]:
        """What a running task lacks before it can be completed."""
        names = snapshot.known_status.evidence
        if not names:
            return ""
        from interlock.nouns.tasks.gates import refusal_now

        refusal = yield from refusal_now(self._runner, names)
        return "" if refusal is None else f"; it lacks evidence: {refusal.entry}"

    def _read_abilities(self, snapshots: Iterable[TaskSnapshot]) -> Op[None]:
        """Read the abilities of agents, if any of these requires something."""
        if any(each.state == "pending" and each.known_spec.requires for each in snapshots):
            self._able = (yield from session_overview()).able

    def _explain(self, snapshot: TaskSnapshot, needed_by: str = "") -> Explanation:
        return explain(snapshot, self._runner.clock.wall(), self._able, needed_by)

    def _takers(self, snapshot: TaskSnapshot) -> Op[str]:
        """The agents that report that they can do this."""
        requires = snapshot.known_spec.requires
        fitting = able_sessions(self._able, requires)[:KEYS_AT_ONCE] if requires else []
        items = yield from looked_up(map(keys.session, fitting))
        sessions = [found for item in items.values() if (found := decode_session(item)) is not None]
        names = sorted({session.agent for session in sessions})
        if not names:
            return ""
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"; {foreign_names(names[:NAMED])}{more} can do it"

    def _where(self, snapshot: TaskSnapshot, claim: TaskOwner) -> Op[str]:
        """The process that works on it."""
        session = yield from self._sessions.find(claim.session)
        where = f", process {session.pid} on {foreign(session.host)}" if session else ""
        return f" (token {snapshot.token}, attempt {claim.attempt}{where})"

    def _blocked(self, first: TaskSnapshot) -> Op[Why]:
        """Explain a blocked task by the needs at the ends of its tree."""
        tree = _NeedsTree(first)
        yield from self._read_needs(tree)
        yield from self._follow(tree)
        yield from self._read_abilities(tree.snapshots.values())
        leaves = {
            task: self._explain(tree.snapshots[task], tree.above(task)) for task in tree.leaves()
        }
        for task, leaf in list(leaves.items()):
            leaves[task] = (yield from self._at_gate(tree.snapshots[task])) or leaf
        worst = max(leaves, key=lambda task: leaves[task].rank)
        found, end = leaves[worst], tree.snapshots[worst]
        cut = f", and so on: {FOLLOWED} tasks were followed" if end.hangs else ""
        others = f"; {tree.unmet} of its needs are not complete" if tree.unmet > 1 else ""
        waits = yield from self._meanwhile(end)
        return Why(
            thing=f"task/{first.task}",
            state="blocked",
            blocked=True,
            because=f"it needs {_chain(tree.path(worst))} ({_state(end)}):"
            f" {found.says}{cut}{others}",
            clear=found.clear,
            by=found.by,
            since=first.known_status.since,
            expires_in=found.expires_in,
            needs=tuple(_lines(tree, leaves, worst)),
            meanwhile=(*waits.lines, *found.meanwhile),
            guard=found.guard,
            leaf=found.leaf,
            leads_to=(*waits.leads_to, *found.leads_to),
            cycle=found.cycle or waits.cycle,
        )

    def _read_needs(self, tree: _NeedsTree) -> Op[None]:
        """Read unmet needs level by level, up to ``NEEDS_SHOWN``."""
        level = [tree.first]
        while level and tree.left > 0:
            for snapshot in level:
                tree.add(snapshot.task, (yield from self._unmet_needs(tree, snapshot)))
            fresh = [task for task in tree.order if task not in tree.snapshots]
            tree.snapshots |= yield from read_snapshots(self._runner, fresh)
            level = [tree.snapshots[task] for task in fresh if tree.snapshots[task].hangs]

    def _unmet_needs(self, tree: _NeedsTree, snapshot: TaskSnapshot) -> Op[list[str]]:
        """The unmet needs of a blocked task, ended ones first; at least one."""
        status = snapshot.known_status
        if status.on.startswith(BATCH):
            return [status.on]
        most = None if snapshot is tree.first else BELOW
        needs = snapshot.known_spec.needs[max(status.place, 0) :][:most]
        items = yield from looked_up(map(keys.status, needs))
        written = snapshot.written
        found = {need: _state_of(_meant(items[keys.status(need)], written)) for need in needs}
        unmet = [need for need in needs if found[need] not in ("unknown", "complete")]
        return sorted(unmet, key=lambda need: found[need] not in _ENDED) or [status.on]

    def _follow(self, tree: _NeedsTree) -> Op[None]:
        """Follow the chain that the task hangs on to its end."""
        at = tree.first
        for _ in range(FOLLOWED):
            if not at.hangs:
                return
            need = at.known_status.on
            if need not in tree.snapshots:
                tree.snapshots[need] = yield from self._read_need(need)
                tree.block_on(at.task, need)
            at = tree.snapshots[need]

    def _read_need(self, need: str) -> Op[TaskSnapshot]:
        """Read one task of a chain; only the status of one that hangs on the next."""
        key = keys.status(need)
        item = (yield Read(key))[key]
        if not need.startswith(BATCH) and _state_of(item) == "blocked":
            return TaskSnapshot(task=need, status=decode_status(item))
        return (yield from read_snapshots(self._runner, [need], data_of=("pending",)))[need]


class _NeedsTree:
    """The needs of a task as a tree, each where it was found first."""

    def __init__(self, first: TaskSnapshot) -> None:
        self.first = first
        self.snapshots = {first.task: first}
        self.order: list[str] = []
        self.unmet = 0
        """The number of unmet needs of the first task, shown or not."""
        self._above: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}

    @property
    def left(self) -> int:
        """How many more may be shown."""
        return NEEDS_SHOWN - len(self.order)

    def add(self, task: str, needs: Sequence[str]) -> None:
        """Add needs of a task up to the limit; a need that is in the tree stays where it is."""
        if task == self.first.task:
            self.unmet = len(needs)
        fresh = [need for need in needs[:NAMED] if need not in self._above]
        for need in fresh[: self.left]:
            self.order.append(need)
            self.block_on(task, need)

    def block_on(self, task: str, need: str) -> None:
        """Put one below another."""
        self._above[need] = task
        self._below.setdefault(task, []).append(need)

    def above(self, need: str) -> str:
        """The task that has this need."""
        return self._above[need]

    def leaves(self) -> list[str]:
        """The needs without needs below them."""
        return [task for task in self.walk() if task not in self._below]

    def path(self, task: str) -> list[str]:
        """The needs from below the first task down to this one."""
        way = []
        while task != self.first.task:
            way.append(task)
            task = self._above[task]
        return way[::-1]

    def walk(self) -> Iterator[str]:
        """All but the first task, each followed by its needs."""
        left = self._below.get(self.first.task, [])[::-1]
        while left:
            task = left.pop()
            yield task
            left.extend(self._below.get(task, [])[::-1])


def _lines(tree: _NeedsTree, leaves: Mapping[str, Explanation], worst: str) -> Iterator[Need]:
    """The shown part of the tree, with the need that the answer names, however deep it is."""
    shown = {*tree.order, worst}
    for task in tree.walk():
        if task in shown:
            snapshot, leaf = tree.snapshots[task], leaves.get(task)
            yield Need(
                task=_name(task),
                state=_state(snapshot),
                says=leaf.says if leaf else f"it needs {_name(snapshot.known_status.on)}",
                depth=len(tree.path(task)),
            )


def _before(snapshot: TaskSnapshot) -> Op[str]:
    """How many ready tasks with the same requirements come before a task."""
    spec = snapshot.known_spec
    place, page = (
        spec.ready_key(snapshot.task),
        Range(keys.ready(spec.requirement_set), "", COUNTED),
    )
    before = sum(item.key < place for item in (yield Read(page)).ranges[page])
    if not before:
        return ""
    many = "1 other is" if before == 1 else f"{before} others are"
    return f"; {many} before it" if before < COUNTED else f"; {before} or more are before it"


def _chain(path: Sequence[str]) -> str:
    """The chain of needs in words, without the middle of a long one."""
    names = [_name(task) for task in path]
    if len(names) <= _CHAIN_SHOWN:
        return ", which needs ".join(names)
    between = len(names) - _CHAIN_SHOWN + 1
    first = [*names[: _CHAIN_SHOWN - 2], f"{between} others one after the other"]
    return f"{', which needs '.join(first)} and in the end {names[-1]}"


def _meant(need: Item | None, written: int) -> Item | None:
    """The item of a need; None if it is younger than the data, and only has the same id."""
    return None if need is not None and need.created > written else need


def _state_of(item: Item | None) -> str:
    """The state in an item, ``unknown`` or ``damaged``."""
    try:
        status = decode_status(item)
    except StoreDamaged:
        return DAMAGED
    return "unknown" if status is None else status.state


def _name(task: str) -> str:
    return "an import" if task.startswith(BATCH) else foreign(task)


def _state(snapshot: TaskSnapshot) -> str:
    return "unfinished" if snapshot.batch else snapshot.state


Able: TypeAlias = Mapping[str, frozenset[str]]
"""The abilities of each session that is here and reports."""


class Explanation(Struct, frozen=True, kw_only=True):
    """What keeps a task from being done, and who can clear it.

    The higher the ``rank``, the less likely it clears by itself.  ``leads_to`` is the thing that
    the guard asks about, such as ``lock/deploy``, and ``meanwhile`` says which hosts look at it.
    """

    says: str
    clear: str
    by: str = ""
    since: float | None = None
    expires_in: float | None = None
    blocked: bool = True
    rank: int = 0
    guard: str = ""
    leaf: str = ""
    leads_to: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()
    meanwhile: tuple[str, ...] = ()


def able_sessions(able: Able, requires: Iterable[str]) -> list[str]:
    """The sessions that can do all of this."""
    return [
        session for session, can in able.items() if ALL_ABILITIES in can or can.issuperset(requires)
    ]


def explain(snapshot: TaskSnapshot, now: float, able: Able, needed_by: str = "") -> Explanation:
    """Explain why a task is not being done, or that it is; another one may need it."""
    status = snapshot.status
    if snapshot.damage:
        says = f"it is damaged: {snapshot.damage}"
        return Explanation(says=says, clear="see 'interlock doctor'", rank=6)
    if status is None:
        clear = f"publish it: interlock task add {quote(snapshot.task)}"
        return Explanation(says="there is no such task", clear=clear, blocked=False, rank=5)
    if snapshot.batch:
        return Explanation(
            says="the import that publishes it has not finished",
            clear="the import finishes; if it was interrupted, repeat it",
            since=status.since,
            rank=4,
        )
    match status.state:
        case "pending":
            return _pending(snapshot, status, now, able)
        case "running":
            return _running(snapshot, status, now)
        case _:
            return _still(snapshot.task, status, now, needed_by)


def _still(task: str, status: TaskStatus, now: float, needed_by: str) -> Explanation:
    """Explain a task that its own workers do not move: blocked or ended."""
    if status.guard:
        says = f"guard {foreign(status.guard)} does not pass"
        clear = f"see {command('interlock why ' + quote(f'task/{task}'))}"
        return Explanation(says=says, clear=clear, since=status.since, rank=1)
    if status.state == "blocked":
        clear = f"see {command('interlock why ' + quote(f'task/{status.on}'))}"
        return Explanation(
            says=f"it needs {foreign(status.on)}", clear=clear, since=status.since, rank=-1
        )
    ago = f"{span(now - status.since)} ago"
    if status.state == "complete":
        says, clear = f"{foreign(status.by)} completed it {ago}", "nothing is left to do"
        return Explanation(says=says, clear=clear, by=status.by, blocked=False)
    if status.state == "dropped":
        return _dropped(task, status, ago, needed_by)
    word = "died" if status.state == "dead" else "failed"
    after = f" after {_failed(status.attempts)}" if status.attempts else ""
    return Explanation(
        says=f"it {word} {ago}{after}:"
        f" {foreign(status.reason) if status.reason else 'no reason was given'}",
        clear=f"retry it: interlock task retry {quote(task)} --agent NAME",
        by=status.by,
        since=status.since,
        rank=5,
    )


def _dropped(task: str, status: TaskStatus, ago: str, needed_by: str) -> Explanation:
    """Explain a task that never began and never will."""
    again = f"publish it again: interlock task add {quote(task)} --again --agent NAME"
    if needed_by:
        without = (
            f"interlock task edit {quote(needed_by)} --remove-needs {quote(task)} --agent NAME"
        )
        again = f"go on without it: {without}; or {again}"
    given = status.reason.removeprefix(f"dropped by {status.by}").removeprefix(": ")
    why = foreign(given) if given else "no reason was given"
    return Explanation(
        says=f"{foreign(status.by)} dropped it {ago}: {why}",
        clear=again,
        by=status.by,
        since=status.since,
        blocked=bool(needed_by),
        rank=5,
    )


def _running(snapshot: TaskSnapshot, status: TaskStatus, now: float) -> Explanation:
    claim = snapshot.claim
    if claim is None or not snapshot.alive:
        agent = "" if claim is None else claim.agent
        return Explanation(
            says=f"{foreign(agent) if agent else 'its worker'} was lost, and its claim is stale",
            clear=f"claim {foreign(snapshot.task)}, or run 'interlock maintain'",
            by=agent,
            since=None if claim is None else claim.since,
            blocked=False,
            rank=3,
        )
    late = status.deadline is not None and status.deadline < now
    return Explanation(
        says=f"{foreign(claim.agent)} has worked on it for {span(now - claim.since)}"
        f"{', past its deadline' if late else ''}",
        clear=f"{foreign(claim.agent)} completes {foreign(snapshot.task)},"
        f" or does not renew it{f' for {span(snapshot.left)}' if snapshot.left else ''}",
        by=claim.agent,
        since=claim.since,
        expires_in=None if snapshot.left is None else round(snapshot.left, 3),
    )


def _pending(snapshot: TaskSnapshot, status: TaskStatus, now: float, able: Able) -> Explanation:
    task, spec = snapshot.task, snapshot.known_spec
    worker, since = _worker(spec), status.since or spec.at
    if status.deadline is not None and status.deadline < now:
        return Explanation(
            says="no worker began it before its deadline,"
            " so the next worker makes it a dead letter",
            clear=f"run 'interlock maintain', then send it back:"
            f" interlock task retry {quote(task)} --agent NAME",
            since=status.deadline,
            rank=5,
        )
    if able and not able_sessions(able, spec.requires):
        return Explanation(
            says=f"it waits for {worker}, and no agent that is here reports that it can",
            clear=f"{worker} comes, and claims {foreign(task)}",
            since=since,
            rank=4,
        )
    if not snapshot.left:
        says, clear = f"it waits for {worker}", f"{worker} claims {foreign(task)}"
        return Explanation(says=says, clear=clear, since=since, blocked=False, rank=2)
    says = f"it must not begin for {span(snapshot.left)}"
    if status.attempts:
        why = f" ({foreign(status.reason)})" if status.reason else ""
        rest = "a time" if snapshot.left == ALIVE else span(snapshot.left)
        says = f"it rests for {rest} after {_failed(status.attempts)}{why}"
    clear = f"its time comes, and {worker} claims {foreign(task)}"
    return Explanation(says=says, clear=clear, since=status.since or None, rank=1)


def _worker(spec: Spec) -> str:
    return (
        f"a worker who can {foreign_names(spec.requires, ' and ')}" if spec.requires else "a worker"
    )


def _failed(attempts: int) -> str:
    return "1 failed attempt" if attempts == 1 else f"{attempts} failed attempts"
