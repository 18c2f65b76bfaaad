"""Outcomes of the record, and the history of a thing, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago, as_json, columns, joined, lasting

if TYPE_CHECKING:
    from interlock.core.entry import RecordLine
    from interlock.core.history import HistoryEvent, Story
    from interlock.nouns.record.noun import (
        Anchored,
        Compared,
        Entries,
        EntriesOfKey,
        Exported,
        NoHistory,
        RecordFinding,
        Verified,
    )
    from interlock.runtime.text import Paint, Text

NAMED = 5
"""Tasks that are named for one entry."""
_GREEN = ("acquired", "claimed", "completed", "sent", "received", "replied")
_YELLOW = ("waiting", "withdrew", "blocked", "asked", "handed")
_RED = (
    "reclaimed", "broken", "requeued", "refused", "lapsed", "failed", "dead", "cancelled",
    "expired", "away", "deadlock", "stop",
)  # fmt: skip
_COLOURS = {
    word: colour
    for colour, words in (("green", _GREEN), ("yellow", _YELLOW), ("red", _RED))
    for word in words
}
_WORDS = {
    "reclaimed": "lost",
    "status": "reported",
    "stop": "asked to stop",
    "expired": "got no answer",
    "away": "ended: its recipient was gone",
    "handed": "left it to a person",
    "parted": "waits for it no more",
    "deadlock": "refused: the wait would never have ended",
}
_OF_MESSAGES = ("message/", "query/", "alert/", "decision/")
_REASONS = {
    "fenced": "its token was an older one",
    "not_owner": "it did not hold it",
    "left": "it left",
    "deadlock": "to wait would have been a deadlock",
}
_OF_A_TASK = {
    "fenced": "its claim was over",
    "not_owner": "it was not the one at work on it",
    "attempts": "no attempt is left",
    "deadline": "no worker began it before its deadline",
    "final": "for good",
    "evidence": "it lacks evidence",
}
_BEGINS = ("published", "retried")
_SHORT = 10.0
_DAY = 86400.0


def _entries(outcome: Entries, paint: Paint) -> str:
    if not outcome.entries:
        return "no entry is recorded, or none that fits"
    rows = [
        (
            f"{line.revision:>6}",
            paint("dim", f"{ago(line.at):>10}"),
            line.agent or "-",
            f"{line.verb} {line.outcome}",
            _about(line),
        )
        for line in outcome.entries
    ]
    return "\n".join(columns(rows))


def _nothing(outcome: NoHistory, _paint: Paint) -> str:
    kind, _, name = outcome.thing.partition("/")
    said = f"the record knows nothing of {outcome.thing}"
    if kind == "lock":
        said += f"; for a task write task/{name}, for an agent agent/{name}"
    if kind == "merge":
        shows = command(f"interlock merge show {quote(name)}")
        said += f"; a merge goes by its id, which {shows} prints"
    return f"{said}; 'interlock record log' shows all"


def _about(line: RecordLine) -> str:
    """The thing of an entry; for tasks also what came of others with it."""
    if line.reason:
        return f"{line.thing}: {line.reason}"
    if not line.verb.startswith("task."):
        return line.thing
    others: dict[str, list[str]] = {}
    for event in line.events:
        word = event.name.partition(":")[2]
        if word != line.outcome:
            others.setdefault(word, []).append(event.thing.removeprefix("task/"))
    return joined([line.thing, *(_became(word, names) for word, names in others.items())])


def _became(word: str, names: Sequence[str]) -> str:
    named = [name for name in names if name]
    if not named:
        return word
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{word}: {joined(named[:NAMED])}{more}"


def _verified(outcome: Verified, paint: Paint) -> str:
    colours = {"ok": "green", "unproven": "yellow", "bad": "red"}
    words = {name: getattr(outcome, name) for name in ("integrity", "completeness", "truncation")}
    rows = [
        (name, paint(colours[word], word), _reason(outcome, name)) for name, word in words.items()
    ]
    if outcome.against is not None:
        rows.append(("against", outcome.against.record, _beside(outcome.against)))
    if outcome.signed:
        rows += [("signed", _count(each.entries), _by(each)) for each in outcome.signed]
        if outcome.unsigned is not None:
            rows.append(("not signed", _count(outcome.unsigned.entries), _by(outcome.unsigned)))
    if outcome.store:
        rows.append(("signed for", "", f"the store {outcome.store}"))
    lines = columns(rows)
    lines += [f"{_position(each)}: {each.says}" for each in outcome.findings]
    if outcome.more:
        lines.append(f"and {outcome.more} more")
    return "\n".join(lines)


def _by(share: EntriesOfKey) -> str:
    """Which key signed entries, for which agents, and where they are."""
    agents = [each or "-" for each in share.agents]
    more = f" and {len(agents) - NAMED} more" if len(agents) > NAMED else ""
    where = f"revision {share.begins} to {share.ends}"
    by = f"by {share.key}, " if share.key else ""
    return f"{by}of {joined(agents[:NAMED])}{more}, {where}"


def _reason(outcome: Verified, name: str) -> str:
    if getattr(outcome, name) == "bad":
        places = [_position(each) for each in outcome.findings if each.verdict == name]
        return f"at {joined(places[:3])}{' ...' if len(places) > len(places[:3]) else ''}"
    match name:
        case "integrity":
            span = f", revision {outcome.begins} to {outcome.ends}" if outcome.ends else ""
            return f"{_count(outcome.entries)}{span}"
        case "completeness" if outcome.since:
            return f"entries before revision {outcome.since} are gone, and nothing stands for them"
        case "completeness":
            dropped = f"; {outcome.dropped} more were dropped, as retention wants"
            return f"record and state tell the same{dropped if outcome.dropped else ''}"
        case _ if outcome.anchored:
            return f"nothing is missing up to revision {outcome.anchored}"
        case _:
            return "a cut end would not show; from now on it does: interlock record anchor FILE"


def _beside(compared: Compared) -> str:
    if not compared.common:
        return "they have no entry in common"
    common = f"up to revision {compared.common} they are the same"
    match compared.record:
        case "same":
            return common
        case "longer":
            return f"{common}, then the record goes on"
        case "shorter":
            return f"{common}, then only the export goes on: a cut record, or a newer copy"
        case "parted":
            return f"{common}, then each goes its own way"


def _position(finding: RecordFinding) -> str:
    return f"revision {finding.revision}" if finding.revision else finding.key


def _count(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _exported(outcome: Exported, paint: Paint) -> str:
    left = f"{_count(outcome.entries)}, {outcome.items} items"
    return f"{paint('green', 'exported')} {outcome.path}: {left}"


def _anchored(outcome: Anchored, paint: Paint) -> str:
    where = f"at revision {outcome.revision}, {_count(outcome.entries)}"
    return f"{paint('green', 'anchored')} {outcome.place}: {where}"


def _history(story: Story, paint: Paint) -> str:
    several = story.thing.startswith("agent/")
    across = story.thing.startswith("request/")  # its history has the events of its task, too
    rows = [
        (
            _clock(each.at),
            paint("dim", f"{ago(each.at):>10}"),
            each.agent or "-",
            _sentence(each, paint, name=several or (across and each.thing != story.thing)),
            paint("dim", each.trace),
        )
        for each in story.happenings
    ]
    more = [paint("dim", "... there is more before; a greater --limit shows it")]
    return "\n".join([*(more if story.earlier else ()), *columns(rows)])


def _sentence(each: HistoryEvent, paint: Paint, *, name: bool) -> str:
    word = paint(_COLOURS.get(each.what, "dim"), _WORDS.get(each.what, each.what))
    if each.what in ("joined", "status", "left", "lapsed"):
        return f"{word}, session {each.session}"
    named = name and each.thing and each.what != "stop"
    what = f"{word} {each.thing}" if named else word
    return joined([what, *_particulars(each)])


def _particulars(each: HistoryEvent) -> Iterator[str]:
    if each.thing.startswith("task/"):
        return _of_a_task(each)
    if each.thing.startswith(("pipeline/", "request/", "quarantine/", "schedule/")):
        return iter([str(each.says)] if each.says else [])
    if each.thing.startswith(_OF_MESSAGES) or each.count is not None or each.what == "stop":
        return _of_a_message(each)
    return _of_a_pool(each)


def _of_a_pool(each: HistoryEvent) -> Iterator[str]:
    if each.token is not None:
        yield f"token {each.token}"
    if each.behind:
        yield f"behind {_names(each.behind)}"
    if each.waited is not None:
        behind = f" behind {_names(each.came_from)}" if each.came_from else ""
        yield f"waited {_span(each.waited)}{behind}"
    elif each.came_from:
        yield f"taken over from {_names(each.came_from)}"
    if each.held is not None:
        yield f"held {_span(each.held)}"
    if each.what == "reclaimed":
        by = f" by {each.by}" if each.by else ""
        yield f"reclaimed{by} since its grant had lapsed"
    if each.says:
        yield (
            f"ended by {each.by or each.agent}: {each.says}" if each.what == "broken" else each.says
        )
    if each.went_to and each.went_to != (each.by,):
        yield f"handed to {_names(each.went_to)}"
    if each.reason:
        yield _REASONS.get(each.reason, each.reason)


def _of_a_task(each: HistoryEvent) -> Iterator[str]:
    if each.what == "claimed" and each.token is not None:
        yield f"token {each.token}"
    if each.attempt is not None:
        yield f"attempt {each.attempt}"
    if each.held is not None:
        yield f"worked {_span(each.held)}"
    yield from _went(each)
    if each.rests is not None:
        word = "not to begin for" if each.what in _BEGINS else "rests"
        yield f"{word} {_span(each.rests)}"
    if each.reason:
        yield _OF_A_TASK.get(each.reason, each.reason)
    if each.says:
        plain = each.what in ("noted", "progress")
        yield each.says if plain else f"the reason: {each.says}"


def _of_a_message(each: HistoryEvent) -> Iterator[str]:
    if each.count is not None:
        yield f"{each.count} {each.on}"
        return
    if each.went_to:
        yield f"to {_names(each.went_to)}"
    if each.on and each.on != each.thing:
        yield each.on
    if each.waited is not None:
        yield f"after {_span(each.waited)}"
    if each.by:
        yield f"by {each.by}"


def _went(each: HistoryEvent) -> Iterator[str]:
    match each.what:
        case "reclaimed":
            yield "its claim had lapsed" + (f", as {each.by} found" if each.by else "")
        case "unblocked":
            by = f"{each.by} completed {each.on}" if each.by else f"{each.on} is complete"
            yield f"since {by}"
        case "requeued":
            yield f"its claim was ended by {each.by or each.agent}"
        case "ready" if each.on == "edit":
            yield "since it was edited"
        case "ready":
            yield f"since {each.on} passes" if each.on else "since its time has come"
        case "noted":
            yield f"note {each.on}"
        case "edited":
            yield from (f"{name} {_values(name, *values)}" for name, values in each.changed.items())
            yield from [f"blocked on {each.on}"] if each.on else []
        case "blocked":
            yield from [f"now on {each.on}"] if each.on else []
        case _:
            yield from [f"blocked on {each.on}"] if each.on else []


def _values(name: str, old: object, new: object) -> str:
    """The values of a field before and after an edit, as one line of JSON each, or as a time."""
    moment = name in ("not_before", "deadline")
    return " -> ".join(
        _clock(value) if moment and isinstance(value, float) else as_json(value)
        for value in (old, new)
    )


def _names(agents: tuple[str, ...]) -> str:
    return joined(agents)


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _SHORT else lasting(seconds)


def _clock(at: float) -> str:
    """The local time, with the day where it was another one."""
    form = "%H:%M:%S" if abs(time.time() - at) < _DAY / 2 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))


TEXTS: dict[str, Text] = {
    "Entries": _entries,
    "NoHistory": _nothing,
    "Story": _history,
    "Verified": _verified,
    "Exported": _exported,
    "Anchored": _anchored,
}
"""The text of each outcome, by the name of its class."""
