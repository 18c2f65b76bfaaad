"""Text of other agents cannot control the terminal of its reader."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import apsw
from tests.faces.shell import Shell
from tests.for_each import for_each

from interlock.core.safe_text import all_foreign, one_line, printable, quoted
from interlock.nouns.grants.lock import LockView

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
