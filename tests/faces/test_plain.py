"""Text of other agents cannot control the terminal of its reader."""

from __future__ import annotations

import json
import unicodedata
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import apsw
from msgspec import Struct
from tests.faces.shell import Shell
from tests.faces.terminal import on_terminal
from tests.for_each import for_each

from interlock import outcomes
from interlock.core.safe_text import all_foreign, one_line, printable, quoted
from interlock.nouns.grants.lock import LockView
from interlock.runtime.text import render, renderer

EVIL = "\x1b]0;x\x07\x1b[2J\nok fake line"
SPELLED = r"\x1b]0;x\x07\x1b[2J\nok fake line"
ACTING = (
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),
    *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)),
    *("\u2028", "\u2029", "\ud800", "\udcff"),
)


def edit(folder: Path, key: str, **changes: object) -> None:
    """Change an item as an editor of SQLite files would."""
    db = apsw.Connection(str(folder / ".interlock" / "store.db"))
    value = json.loads(db.execute("SELECT value FROM item WHERE key = ?", (key,)).get)
    part = value["grants"][0] if "grants" in value else value
    part.update(changes)
    db.execute("UPDATE item SET value = ? WHERE key = ?", (json.dumps(value).encode(), key))
    db.close()


def harmless(text: str, *, lines: int) -> None:
    assert text.count("\n") == lines, text
    assert [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")] == []


@for_each("sign", ACTING, lambda sign: f"U+{ord(sign):04X}")
def test_what_acts_is_spelled_out(sign: str) -> None:
    assert printable(f"a{sign}b") == "a" + ascii(sign)[1:-1] + "b"
    assert printable(f"a{sign}b").isprintable()


def test_what_prints_stays() -> None:
    assert printable("Ada Lövelace 编译 🙂 \\x1b") == "Ada Lövelace 编译 🙂 \\x1b"


def test_a_message_is_one_line() -> None:
    assert one_line("a\n b\x1b[2J") == r"a b\x1b[2J"


def test_a_word_is_not_repeated_at_any_length() -> None:
    assert quoted("a\x1b") == r"'a\x1b'"
    assert len(quoted("9" * 5000)) < 60


def test_a_copy_is_plain_to_its_depth_and_of_the_same_type() -> None:
    shown = LockView(lock="a\n", state="held", holder="b", token=1, since=0.0, waiters=("c\x1b",))
    clean: Any = all_foreign({"x\n": [shown]})
    assert list(clean) == ["x\\n"]
    (copy,) = clean["x\\n"]
    assert (type(copy), copy.lock, copy.waiters) == (LockView, "a\\n", ("c\\x1b",))
    assert shown.lock == "a\n", "the outcome itself is as it was"


def evil_value(wanted: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind of type
    """A value of this type, with EVIL for each text in it."""
    kind, parts = get_origin(wanted), get_args(wanted)
    if kind is Annotated:
        return evil_value(parts[0], depth)
    if kind is Literal:
        return parts[0]
    if kind in (Union, UnionType):
        return None if depth > 2 and NoneType in parts else evil_value(parts[0], depth)
    if kind is tuple and depth > 2:  # a claim has others
        return ()
    if kind is tuple:
        parts = parts[:1] if parts[-1] is ... else parts
        return tuple(evil_value(part, depth) for part in parts)
    if kind is not None:  # a mapping
        return {evil_value(parts[0], depth): evil_value(parts[1], depth)}
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        types = get_type_hints(wanted, include_extras=True)
        names = wanted.__struct_fields__
        return wanted(**{name: evil_value(types[name], depth + 1) for name in names})
    return {int: 1, float: 1.0, bool: True, NoneType: None}.get(wanted, f"{EVIL}\x9b\u202e")


def test_no_outcome_acts_on_a_terminal() -> None:
    rendered = 0
    for name in outcomes.__all__:
        kind = getattr(outcomes, name)
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            continue
        with suppress(KeyError):  # some have no text
            renderer(kind)
            text = render(evil_value(kind))
            harmless(text, lines=text.count("\n"))
            assert "\nok fake" not in text, name
            rendered += 1
    assert rendered > 150


def test_an_edited_holder_cannot_act_on_a_terminal(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge", "--metadata", '{"a": "x\\ny"}')
    assert '{"a":"x\\ny"}' in ada.run("lock", "show", "merge").out, "a legal line break stays JSON"
    edit(ada.folder, "locks/merge", agent=EVIL, metadata={"a": "\x9b2J\u202eb"})
    listed = ada.run("lock", "list").out
    harmless(listed, lines=2)
    assert SPELLED in listed
    shown = ada.run("lock", "show", "merge").out
    harmless(shown, lines=8)
    assert SPELLED in shown
    assert r'{"a":"\x9b2J\u202eb"}' in shown
    busy = ada.run("lock", "acquire", "merge", "--agent", "bob")
    harmless(busy.out, lines=1)
    assert (busy.status, SPELLED in busy.out) == (1, True)
    why = ada.run("why", "merge").out
    harmless(why, lines=4)
    assert SPELLED in why
    assert ada.json("lock", "show", "merge")[1]["holder"] == EVIL, "JSON says it as it is"


def test_an_edited_session_cannot_act_on_a_terminal(ada: Shell) -> None:
    _, joined = ada.json("agent", "join")
    edit(ada.folder, f"sessions/{joined['session']}", agent=EVIL, host="h\x1b[2J\u2066")
    listed = ada.run("agent", "list").out
    harmless(listed, lines=3)
    assert SPELLED in listed
    assert r"h\x1b[2J\u2066" in listed
    refused = ada.run("lock", "acquire", "m", "--session", joined["session"], "--agent", "bob")
    assert refused.status == 2
    harmless(refused.err, lines=1)
    harmless(ada.run("-vv", "lock", "list", "--session", joined["session"]).err, lines=2)


def test_an_edited_record_cannot_act_on_a_terminal(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    entry = json.loads(db.execute("SELECT value FROM log").get)
    entry |= {"agent": EVIL, "thing": "t\x9b", "trace": "\x1b"}
    db.execute("UPDATE log SET value = ?", (json.dumps(entry).encode(),))
    db.close()
    said = ada.run("record", "log").out
    harmless(said, lines=1)
    assert SPELLED in said


def test_an_export_cannot_act_on_a_terminal_and_is_as_it_was_in_a_pipe(ada: Shell) -> None:
    ada.run("lock", "acquire", "merge")
    db = apsw.Connection(str(ada.folder / ".interlock" / "store.db"))
    entry = json.loads(db.execute("SELECT value FROM log").get)
    evil = f"{EVIL}\x9b2J\x7f\x85\u2028\u202e\U000e0041"
    raw = json.dumps(entry | {"agent": evil}, ensure_ascii=False).encode()
    db.execute("UPDATE log SET value = ?", (raw,))
    db.close()
    piped = ada.run("record", "export").out
    assert "\x9b2J\x7f\x85\u2028\u202e\U000e0041" in piped
    with on_terminal(ada, "record", "export") as terminal:
        assert terminal.ends() == 0
    shown = terminal.seen.decode().replace("\r\n", "\n")
    harmless(shown, lines=piped.count("\n"))
    assert [json.loads(line) for line in shown.split("\n")[:-1]] == [
        json.loads(line) for line in piped.split("\n")[:-1]
    ]
