"""What ``.interlock/config.toml`` may set, for the command line and the library alike.

    store = "redis://coordinator.example/0?ns=shop"

    [lock."*"]
    ttl = "2m"

    [lock."deploy/eu"]
    ttl = "30s"
    max_hold = "10m"

    [semaphore.builds]
    capacity = 3

    [agent]
    busy = "30s"
    log_bytes = "4MB"

    [task]
    keep = "90d"
    kept = 100000

    [message]
    rate = 100
    window = "1s"
    keep = "24h"

    [limits]
    pause_after = 20

    [request]
    audit = "/var/log/interlock"

    [guard]
    look = true

    [query."*"]
    timeout = "30s"

    [query.timeouts]
    review = "5m"

    [record]
    hot = "256MB"
    keep = "90d"
    sealed = "1GB"

No file is needed.  What a call says stands above the environment (INTERLOCK_LOCK_TTL,
INTERLOCK_SEMAPHORE_MAX_HOLD, INTERLOCK_RECORD_HOT and so on), and that above the file; the
settings of one lock, one semaphore or one agent that is asked stand above those of all, ``"*"``,
which is no legal name and so never one.  The timeout of a type of questions, under
``[query.timeouts]``, stands above that of the agent.
A store may be a URL or a path; a relative path begins at the folder of the file.
The file is read when something first asks for it, and only if it is there.  A commit can write it,
so it counts only if the user allowed it (``work_tree.py``), or named it with INTERLOCK_SETTINGS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from interlock.core import validate
from interlock.core.validate import CAPACITY
from interlock.errors import BadDuration, BadInput

FILE = "config.toml"
_TERMS = ("ttl", "max_hold")
_KINDS = {"lock": _TERMS, "semaphore": (*_TERMS, "capacity"), "query": ("timeout",)}
_TABLES = {
    "agent": ("busy", "waiting", "idle", "log_bytes", "log_age"),
    "message": ("rate", "window", "body", "inbox", "keep", "kept", "alerts", "open_queries"),
    "record": ("hot", "keep", "sealed"),
    "task": ("keep", "kept"),
    "limits": ("pause_after",),
    "guard": ("look",),
    "request": ("audit",),
}
_KNOWN = (*_KINDS, *_TABLES, "store")
_ALL = "*"
_TIMEOUTS = "timeouts"
_LEAST_PACE = 1.0
LEAST_WINDOW = 0.01
MOST_MESSAGES = 10_000_000
_DIGITS = 18
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_NO_PATH = ("sqlite:", "memory:", "~")


def content(path: str) -> bytes | None:
    """What a file holds; None if there is none."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return file.read()


class Settings:
    """The settings of one folder, or of the file that the user names; else everything is unset.

    ``read`` says what of the file counts.
    """

    def __init__(
        self,
        folder: str | None = None,
        read: Callable[[str], bytes | None] = content,
        *,
        file: str | None = None,
    ) -> None:
        self._path = file if folder is None else os.path.join(folder, FILE)
        self._content = read
        self._table: dict[str, Any] | None = None
        self._named: dict[str, dict[str, dict[str, float]]] = {}

    @property
    def store(self) -> str | None:
        """The URL or the path of the store."""
        url = self._read().get("store")
        if self._path is None or url is None:
            return None
        if not isinstance(url, str) or not url or "\0" in url:
            raise BadInput(f"{self._path}: store must name one, such as 'sqlite:///path.db'")
        if "://" in url or url.startswith(_NO_PATH):
            return url
        return os.path.join(os.path.dirname(self._path), url)  # the same from every folder below

    def lock(self, name: str, least: float = 0.0) -> Mapping[str, float]:
        """The terms of a lock in seconds: ``ttl`` and ``max_hold``, where they are set.

        ``least`` is the shortest that the store can measure.
        """
        return self._of("lock", name, least)

    def semaphore(self, name: str, least: float = 0.0) -> Mapping[str, float]:
        """The terms of a semaphore: ``ttl``, ``max_hold`` and ``capacity``, where they are set."""
        return self._of("semaphore", name, least)

    def record(self) -> dict[str, float]:
        """The limits of the record that are set: how large the log may be, what is kept of it.

        ``hot_entries`` or ``hot_bytes``, ``keep`` in seconds, ``sealed`` in bytes.
        """
        return self._limits("record")

    def agent(self) -> dict[str, float]:
        """The settings for agents: how often they report, and how much of their logs is kept.

        ``busy``, ``waiting`` and ``idle`` in seconds, ``log_bytes``, ``log_age`` in seconds.
        """
        return self._limits("agent")

    def task(self) -> dict[str, float]:
        """The settings for finished tasks: ``keep`` in seconds, and how many are ``kept``."""
        return self._limits("task")

    def message(self) -> dict[str, float]:
        """The settings for messages: how often an agent may send, how much, and what is kept.

        ``rate`` messages (0 for any number) in a ``window`` of seconds, ``body`` in bytes,
        ``inbox`` and ``open_queries`` as numbers of messages, ``keep`` in seconds, ``kept`` and
        ``alerts`` as numbers of messages that are kept after they were read.
        """
        return self._limits("message")

    def limits(self) -> dict[str, float]:
        """The settings for senders that exceed limits.

        After ``pause_after`` refusals within a minute a sender is paused; 0 for never.
        """
        return self._limits("limits")

    def looks(self) -> bool:
        """Whether agents look at the outside, for gates that wait for it, unless they say so."""
        return bool(self._limits("guard").get("look"))

    def audit(self) -> str:
        """The folder of the daily files of the audit; empty if ``maintain`` writes none.

        A relative path in the file begins at the folder of the file.
        """
        if path := os.environ.get("INTERLOCK_REQUEST_AUDIT"):
            return os.path.abspath(os.path.expanduser(path))
        path = self._read().get("request", {}).get("audit", "")
        if not isinstance(path, str) or "\0" in path:
            raise BadInput(f"{self._path}: [request]: audit must name a folder, such as 'audit'")
        if not path or self._path is None:
            return ""
        return os.path.join(os.path.dirname(self._path), os.path.expanduser(path))

    def query(self, to: str, type_: str = "") -> float | None:
        """How long to wait for an answer, if that is set.

        To a question of this type, else of this agent or ``?ability``, else to any.
        """
        set_for_all = os.environ.get("INTERLOCK_QUERY_TIMEOUT")
        of_type = None if set_for_all else self._timeouts().get(type_)
        return self._of("query", to, 0.0).get("timeout") if of_type is None else of_type

    def _timeouts(self) -> dict[str, float]:
        """How long to wait for answers to questions of each type."""
        table = self._read().get("query", {}).get(_TIMEOUTS, {})
        where = f"{self._path}: [query.{_TIMEOUTS}]"
        if not isinstance(table, dict):
            raise BadInput(f"{where} must be a table, such as review = '5m'")
        for key, value in table.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise BadInput(f"{where} {key} must be a duration, such as '5m'")
        try:
            return {key: validate.ttl(value, 0.0, key) for key, value in table.items()}
        except (BadDuration, BadInput) as error:
            raise type(error)(f"{where}: {error}") from None

    def _limits(self, kind: str) -> dict[str, float]:
        table = self._read().get(kind, {})
        found: dict[str, float] = {}
        for key in _TABLES[kind]:
            name = f"INTERLOCK_{kind.upper()}_{key.upper()}"
            if text := os.environ.get(name):
                found.update(_limit(key, text, name))
            elif key in table:
                try:
                    found.update(_limit(key, table[key], key))
                except BadInput as error:
                    raise type(error)(f"{self._path}: [{kind}]: {error}") from None
        return found

    def _of(self, kind: str, name: str, least: float) -> Mapping[str, float]:
        named = self._named.get(kind)
        if named is None:
            named = self._named[kind] = self._all(kind, least)
        return named.get(name) or named[_ALL]

    def _all(self, kind: str, least: float) -> dict[str, dict[str, float]]:
        """Everything of a kind that has settings of its own, and what all others have."""
        environment: dict[str, float] = {}
        for term in _KINDS[kind]:
            if term == "capacity":
                continue
            variable = f"INTERLOCK_{kind.upper()}_{term.upper()}"
            if text := os.environ.get(variable):
                environment[term] = validate.ttl(text, least, variable)
        tables = {_ALL: {}, **self._read().get(kind, {})}
        if kind == "query":
            tables.pop(_TIMEOUTS, None)
        if "default" in tables:
            raise BadInput(
                f'{self._path}: [{kind}.default] is not clear; write [{kind}."*"] for all'
            )
        terms = {name: self._terms(kind, name, table, least) for name, table in tables.items()}
        return {name: {**terms[_ALL], **own, **environment} for name, own in terms.items()}

    def _terms(self, kind: str, name: str, table: object, least: float) -> dict[str, float]:
        where = f'{self._path}: [{kind}."{name}"]'
        if not isinstance(table, dict):
            raise BadInput(f"{where} must be a table, such as ttl = '30s'")
        for key in table:
            if key not in _KINDS[kind]:
                *others, last = _KINDS[kind]
                raise BadInput(
                    f"{where} does not know {key!r}; it takes {', '.join(others)} and {last}"
                )
            if isinstance(table[key], bool) or not isinstance(table[key], str | int | float):
                like = "a whole number" if key == "capacity" else "a duration, such as '30s'"
                raise BadInput(f"{where} {key} must be {like}")
        try:
            return {term: _term(term, table[term], least) for term in table}
        except (BadDuration, BadInput) as error:
            raise type(error)(f"{where}: {error}") from None

    def _read(self) -> dict[str, Any]:
        if self._table is None:
            self._table = self._load()
        return self._table

    def _load(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        try:
            data = self._content(self._path)
            if data is None:
                return {}
            import tomllib

            table = tomllib.loads(data.decode())
        except (OSError, ValueError, RecursionError) as error:
            raise BadInput(f"{self._path} cannot be read ({error}); correct or remove it") from None
        for key in table:
            if key not in _KNOWN:
                raise BadInput(f"{self._path} does not know {key!r}; it takes {', '.join(_KNOWN)}")
        for kind in _KINDS:
            if not isinstance(table.get(kind, {}), dict):
                raise BadInput(f"{self._path}: {kind} must be a table, such as [{kind}.merge]")
        for kind, known in _TABLES.items():
            self._check(kind, known, table.get(kind, {}))
        return table

    def _check(self, kind: str, known: tuple[str, ...], table: object) -> None:
        if not isinstance(table, dict):
            raise BadInput(f"{self._path}: {kind} must be a table, such as [{kind}]")
        *others, last = known
        taken = f"{', '.join(others)} and {last}" if others else last
        for key in table:
            if key not in known:
                raise BadInput(f"{self._path}: [{kind}] does not know {key!r}; it takes {taken}")


def _term(term: str, value: Any, least: float) -> float:  # noqa: ANN401 - as it stands in a file
    if term == "capacity":
        return validate.count(value, term, CAPACITY)
    return validate.ttl(value, least, term)


def _pace(value: str | float, where: str) -> float:
    seconds = validate.duration(value, where)
    if seconds < _LEAST_PACE:
        raise BadDuration(f"the {where} {value} is too short; give {_LEAST_PACE:g}s or more")
    return seconds


def _limit(key: str, value: object, where: str) -> dict[str, float]:
    """One limit as a setting of its noun."""
    if key == "look":
        return {key: _flag(value, where)}
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"the {where} must be a number, or text like 256MB or 90d")
    if key == "hot":
        return _hot(value, where)
    return {key: _READERS[key](value, where)}


def _hot(value: str | float, where: str) -> dict[str, float]:
    size = validate.size(value, where)
    if str(value).strip().isdecimal():
        return {"hot_entries": size, "hot_bytes": 0}
    return {"hot_entries": 0, "hot_bytes": size}


def _flag(value: object, where: str) -> bool:
    """Yes or no: a boolean of the file, or a word of the environment."""
    word = str(value).strip().lower()
    if isinstance(value, bool | str) and word in (*_YES, *_NO):
        return word in _YES
    raise BadInput(f"the {where} is either true or false, not {str(value)[:40]!r}")


def _number(value: str | float, where: str) -> float:
    text = str(value).strip()
    number: Any = int(text) if text.isdecimal() and len(text) <= _DIGITS else value
    return validate.integer(number, where, 0, MOST_MESSAGES)


def _window(value: str | float, where: str) -> float:
    return validate.ttl(value, LEAST_WINDOW, where)


_READERS: dict[str, Callable[[str | float, str], float]] = {
    **dict.fromkeys(("busy", "waiting", "idle"), _pace),
    **dict.fromkeys(("rate", "inbox", "kept", "alerts", "open_queries", "pause_after"), _number),
    **dict.fromkeys(("keep", "log_age"), validate.duration),
    **dict.fromkeys(("sealed", "log_bytes", "body"), validate.size),
    "window": _window,
}
