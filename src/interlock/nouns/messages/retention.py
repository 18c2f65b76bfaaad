"""What is read before something is forgotten, and what is known of it then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.drivers import Op
from interlock.nouns.messages import decode, retention_rules
from interlock.nouns.messages.receivers import Serving, serves
from interlock.nouns.messages.retention_rules import Aim, Forgotten, Mark
from interlock.runtime.decode import readable
from interlock.runtime.gather import looked_up
from interlock.runtime.runner import DecideOp, Unchecked
from interlock.store import Item


def aims(marks: Sequence[str]) -> Op[list[Aim]]:
    """What goes with these marks.  A question has its own time; what cannot be read stays."""
    wanted = {each: keys.message(keys.last(each)) for each in marks}
    items = yield from looked_up(key for key in wanted.values() if not key.startswith(keys.QUERIES))
    found: list[Aim] = []
    for each, key in wanted.items():
        item = items.get(key)
        message = None if item is None else readable(decode.message, item)
        if item is None or message is not None:
            found.append(retention_rules.aim(each, message))
    return found


def portions(aims: Sequence[Aim], room: int) -> Iterator[list[Aim]]:
    """As many at once as a commit takes."""
    some: list[Aim] = []
    for each in aims:
        if some and sum(one.size for one in some) + each.size > room:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def marks(aims: Sequence[Aim]) -> DecideOp[Forgotten]:
    """Marks, and the messages of which they are the last; all that it relies on is checked."""
    wanted = dict.fromkeys(key for each in aims for key in (each.mark, *each.others))
    items = (yield tuple(wanted)).items
    return retention_rules.forget(aims, {key for key, item in items.items() if item is not None})


def alerts(topic: str, some: Sequence[Mark], seen: int) -> DecideOp[Forgotten]:
    """Messages of a topic, unless somebody forgot some of it since we saw it at a revision."""
    item = (yield (keys.trimmed(topic),))[keys.trimmed(topic)]
    if revision(item) != seen:
        return Decision(outcome=Forgotten())
    return retention_rules.trim(topic, some, decode.trimmed(item))


def queries(some: Sequence[str]) -> DecideOp[Forgotten]:
    """Questions, as far as they are over."""
    items = (yield tuple(some)).items
    found = [query for key in some if (query := decode.query(items[key])) is not None]
    notes = (yield tuple(dict.fromkeys(map(retention_rules.noted, found)))).items if found else {}
    answers = {key: decode.cached(item) for key, item in notes.items()}
    return retention_rules.forget_queries(found, answers)


def others(
    verb: str,
    some: tuple[str, ...],
    over: Callable[[Item], bool],
    lives: Mapping[str, str] | None,
) -> DecideOp[Forgotten]:
    """Whatever is there, and over; ``lives`` are keys that must not live."""
    items = (yield some).items
    old = [key for key, item in items.items() if item is not None and over(item)]
    if old and lives is not None:
        live = (yield Unchecked([lives[key] for key in old])).items
        old = [key for key in old if live[lives[key]] is None]
    return retention_rules.dropped(verb, old, len(old))


def receiver(key: str, note: Serving) -> DecideOp[Forgotten]:
    """A receiver died: what it had in its hands stays noted for the next one."""
    item = (yield (key,))[key]
    stands = None if item is None else readable(serves, item)
    live = (yield Unchecked((note.live,)))[note.live]
    if stands != note or live is not None:
        return Decision(outcome=Forgotten())
    put = Write(key, replace(note, over=True))
    return Decision(
        outcome=Forgotten(count=1), verb="agent.forget", thing=retention_rules.THING, puts=(put,)
    )


def ended(item: Item) -> float | None:
    """When a question was over."""
    found = decode.query(item)
    return None if found is None else retention_rules.ended(found)


def resolved(item: Item) -> float | None:
    """When a person decided something."""
    found = decode.matter(item)
    return found.resolved if found is not None and found.state == "resolved" else None


def is_open(item: Item | None) -> bool:
    """Whether a question is open; one that cannot be read may be."""
    if item is None:
        return False
    found = readable(decode.query, item)
    return found is None or found.state == "open"


def revision(item: Item | None) -> int:
    """The revision of an item; 0 if there is none."""
    return 0 if item is None else item.revision
