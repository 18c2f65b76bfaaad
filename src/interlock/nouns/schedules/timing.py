"""When a schedule is due: every so many seconds from a start, or by a cron line in a time zone.

The times are whole seconds since 1970.  An interval counts real seconds.  A cron line is read as
Debian's cron reads it, by ``cronsim``: at the change to summer time, a line with a fixed hour and
minute whose time does not exist that day comes right after the gap, and at the change back it comes
once; a line with ``*`` in front of its hours or minutes goes on in real time, so it comes in both
of the doubled hours.

The times that follow each other (``following``) are the one definition of a schedule.  Missed runs
are found by going back a bounded number of steps, and then forward with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from interlock.errors import BadInput

if TYPE_CHECKING:
    from interlock.nouns.schedules.schedule import Schedule

_FIELDS = 5
MISSED_MOST = 100
"""The most missed runs that are counted one by one, and published with ``all``."""
GRACE = 60.0
"""A run that is found within this many seconds was not missed."""
_SPARE = 3
"""Steps further back than asked: the way back may leave out times in a doubled hour."""
_TRIES = 200
"""The most times in a doubled hour that lie before the moment asked for."""


def check_cron(line: str) -> str:
    """The cron line, with single spaces; raises if it cannot be read, or never comes."""
    from cronsim import CronSim, CronSimError

    fields = line.split()
    text, wrong = " ".join(fields), ""
    if len(fields) != _FIELDS:  # cronsim would take the first of six for seconds
        wrong = f"it has {len(fields)} fields, not {_FIELDS}"
    else:
        try:
            CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            wrong = str(error)
    if wrong:
        raise BadInput(
            f"the cron line {line!r:.80} is not valid ({wrong}); give minute, hour, day of the"
            " month, month and day of the week, as in '0 9 * * 1-5'"
        )
    return text


def check_zone(name: str) -> str:
    """The name of a time zone; raises if this host does not know it."""
    zone_of(name)
    return name


def zone_of(name: str) -> tzinfo:
    """A time zone by its name, such as Europe/Berlin."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # no such zone, or no file of that name
        raise BadInput(
            f"this host knows no time zone {name!r:.80}; give one like Europe/Berlin, or install"
            " the zones (Debian: apt install tzdata, else: pip install tzdata)"
        ) from None


def following(schedule: Schedule, after: float) -> float | None:
    """The first time after a moment; None if there is none any more."""
    if schedule.cron:
        return next(_forward(schedule, after), None)
    if after < schedule.start:
        return schedule.start
    passed = (after - schedule.start) // schedule.every
    return schedule.start + (passed + 1) * schedule.every


def missed(schedule: Schedule, first: float, now: float) -> list[float]:
    """The times from ``first`` on until now: the last of them, up to one more than are counted."""
    most = MISSED_MOST + 1
    if schedule.cron:
        since_first = takewhile(lambda time: time >= first, _backward(schedule, now))
        back = list(islice(since_first, most + _SPARE))
        begin = back[-1] if len(back) == most + _SPARE else first
        found = []
        for time in _forward(schedule, begin - 1):
            if time > now:
                break
            found.append(time)
        return found[-most:]
    found = []
    time = schedule.start + (now - schedule.start) // schedule.every * schedule.every
    while time >= first and len(found) < most:
        found.append(time)
        time -= schedule.every
    return found[::-1]


def _forward(schedule: Schedule, after: float) -> Iterator[float]:
    from cronsim import CronSim

    began = datetime.fromtimestamp(after, zone_of(schedule.zone))
    tries = _TRIES
    for moment in CronSim(schedule.cron, began):
        time = moment.timestamp()
        if time > after:
            yield time
            after = time
        elif not (tries := tries - 1):
            return


def _backward(schedule: Schedule, before: float) -> Iterator[float]:
    from cronsim import CronSim

    began = datetime.fromtimestamp(before, zone_of(schedule.zone))
    for moment in CronSim(schedule.cron, began.replace(microsecond=1), reverse=True):
        yield moment.timestamp()
