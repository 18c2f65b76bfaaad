"""What is met in an inbox and is over: a question whose time is up, a stop for those before us.

The one is ended by whoever meets it.  The other is passed over: it asked the sessions to end that
were there when it was sent, and ours began later.  Nobody is left to obey it, so it is acknowledged
away; but while one of those sessions lives it stays, since that one may still have to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from interlock.core import keys
from interlock.drivers import Op
from interlock.errors import StoreDamaged, StoreTrouble
from interlock.nouns.messages import decode
from interlock.nouns.messages.acknowledging import Acking
from interlock.nouns.messages.reading import Found
from interlock.runtime.decode import readable
from interlock.runtime.gather import every, looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read
from interlock.store import Item


def expired(runner: Runner, actor: Actor, lives: Mapping[str, Item | None]) -> Op[set[str]]:
    """The questions among these whose time is up, ended; what cannot be read is left as it is."""
    found: set[str] = set()
    for key in [key for key, item in lives.items() if item is None]:
        from interlock.nouns.messages.query_wait import expire

        with suppress(StoreDamaged):
            yield from expire(runner, actor, keys.last(key))
            found.add(keys.last(key))
    return found


def past(
    acking: Acking, actor: Actor, found: Iterable[Found], items: Mapping[str, Item | None]
) -> Op[set[str]]:
    """The stops among these that were sent before our session began; without one, none of them."""
    urgent = [each for each in found if each.urgent and not each.topic]
    sent = {each.id: each.seq for each in urgent if _is_stop(items[each.key])}
    if not sent:
        return set()
    own = keys.present(actor.agent, actor.session)
    item = (yield Read(own))[own]
    earlier = {id_: seq for id_, seq in sent.items() if item is not None and seq < item.created}
    if earlier:
        yield from clear(acking, actor, earlier)
    return set(earlier)


def clear(acking: Acking, actor: Actor, earlier: Mapping[str, int]) -> Op[list[str]]:
    """Acknowledge those of these stops away that nobody is left for; ``earlier`` is when they came.

    All of them are from before our session, so that one is not asked for.  A store that takes
    nothing at the moment holds nobody up: whatever stays is met again.
    """
    sessions = yield from every(keys.present(actor.agent))
    began = {keys.live(keys.last(item.key)): item.created for item in sessions}
    lives = yield from looked_up(began)
    there = [began[key] for key, item in lives.items() if item is not None]
    done = [id_ for id_, sent in earlier.items() if all(sent < each for each in there)]
    try:
        if done:
            yield from acking.acknowledge(actor, done)
    except StoreTrouble:
        return []
    return done


def _is_stop(item: Item | None) -> bool:
    message = None if item is None else readable(decode.message, item)
    return message is not None and message.kind == "stop"
