"""A fleet whose every name and reason is hostile: no command prints one as Interlock's words."""

from __future__ import annotations

import json

from tests.faces.foreign_words import CANARY, HOSTILE, LINES, leaks, split_names
from tests.faces.shell import Here

ONE_LINE = f"no luck). {HOSTILE}"
TASK = f"t {HOSTILE}"
NEED = f"need {HOSTILE}"
QUERY = f"qry_{HOSTILE}"
_NAME, _REASON = json.dumps(HOSTILE), json.dumps(ONE_LINE)
GUARDS = f"""
[guard.{_NAME}]
when = [
  {{lock_free = {_NAME}}},
  {{file_contains = {{path = {_NAME}, text = {_NAME}}}}},
]
on_failure = {{fail = {_REASON}}}
"""
PIPELINES = f"""
[pipeline.{_NAME}]
[[pipeline.{_NAME}.phase]]
name = {_NAME}
pre = [{{lock_free = {_NAME}}}]
"""
DEEDS: tuple[tuple[str, ...], ...] = (
    ("agent", "join"),
    ("lock", "acquire", HOSTILE),
    ("lock", "acquire", HOSTILE, "--agent", "ada"),
    ("sem", "acquire", HOSTILE, "--capacity", "1", "--metadata", json.dumps(LINES)),
    ("sem", "acquire", HOSTILE, "--agent", "ada"),
    ("sem", "acquire", HOSTILE, "--capacity", "3", "--agent", "ada"),
    ("task", "add", NEED, "--title", ONE_LINE, "--data", json.dumps(LINES)),
    ("task", "add", TASK, "--needs", NEED, "--text", LINES, "--label", HOSTILE),
    ("task", "add", f"able {HOSTILE}", "--requires", HOSTILE, "--title", ONE_LINE),
    ("task", "add", f"last {HOSTILE}", "--needs", TASK),
    ("task", "note", NEED, LINES),
    ("task", "claim", NEED),
    ("task", "claim", NEED, "--agent", "ada"),
    ("task", "claim", TASK, "--agent", "ada"),
    ("task", "claim", f"no {HOSTILE}", "--agent", "ada"),
    ("task", "add", NEED),
    ("task", "done", NEED, "--agent", "ada", "--token", "1"),
    ("task", "progress", NEED, "40%", ONE_LINE, "--token", "TOKEN"),
    ("task", "fail", NEED, ONE_LINE, "--final", "--token", "TOKEN"),
    ("task", "edit", TASK, "--title", ONE_LINE),
    ("task", "drop", f"last {HOSTILE}", "--reason", ONE_LINE),
    ("task", "retry", TASK),
    ("reserve", f"src/{HOSTILE}", "--reason", ONE_LINE),
    ("reserve", f"src/{HOSTILE}", "--agent", "ada"),
    ("reserve", f"src/{HOSTILE}", "--agent", "ada", "--on-conflict", "queue"),
    ("unreserve", f"src/{HOSTILE}", "--agent", "ada"),
    ("send", "ada", "--hold", LINES, "--subject", ONE_LINE),
    ("send", HOSTILE, "hello", "--agent", "ada", "--hold"),
    ("send", f"no {HOSTILE}", "hello", "--agent", "ada"),
    ("alert", HOSTILE, json.dumps(LINES)),
    ("subscribe", HOSTILE, "--agent", "ada"),
    ("query", "ada", LINES, "--timeout", "0s", "--hold", "--id", QUERY),
    ("query", HOSTILE, "well?", "--timeout", "0s", "--agent", "ada"),
    ("query", f"?{HOSTILE}", "well?", "--timeout", "0s", "--agent", "ada"),
    ("schedule", "add", HOSTILE, "--every", "1h", "--title", ONE_LINE),
    ("schedule", "pause", HOSTILE, ONE_LINE),
    ("schedule", "show", HOSTILE),
    ("guard", "define", "guards.toml"),
    ("pipeline", "define", "pipelines.toml"),
    ("pipeline", "start", HOSTILE, "--id", HOSTILE),
    ("lock", "acquire", "guarded", "--guard", HOSTILE, "--agent", "ada"),
    ("task", "add", f"guarded {HOSTILE}", "--guard", HOSTILE),
    ("task", "claim", f"guarded {HOSTILE}", "--agent", "ada"),
    ("budget", "set", f"agent/{HOSTILE}", "--tokens", "1"),
    ("task", "list", "--all"),
    ("agent", "pause", HOSTILE, "--reason", ONE_LINE, "--agent", "ada"),
    ("send", "ada", "hello"),
    ("lock", "break", HOSTILE, "--reason", ONE_LINE),
    ("lock", "release", HOSTILE, "--token", "1"),
    ("pipeline", "cancel", HOSTILE, ONE_LINE),
)
LOOKS: tuple[tuple[str, ...], ...] = (
    *(("why", f"{kind}/{HOSTILE}") for kind in ("lock", "sem", "agent", "pipeline", "guard")),
    ("why", f"schedule/{HOSTILE}"),
    ("why", HOSTILE),
    ("why", f"src/{HOSTILE}"),
    *(("why", f"task/{kind} {HOSTILE}") for kind in ("t", "need", "able", "last", "guarded", "no")),
    ("why", f"query/{QUERY}"),
    ("health", "--waiting", "0s", "--held", "0s", "--stuck", "0s", "--dead-after", "0s"),
    *((noun, "list") for noun in ("task", "lock", "sem", "agent", "schedule", "pipeline", "guard")),
    *((noun, "list") for noun in ("message", "merge", "decision", "request")),
    *(("task", "show", f"{kind} {HOSTILE}") for kind in ("t", "need", "able", "last")),
    *((noun, "show", HOSTILE) for noun in ("lock", "sem", "agent", "pipeline", "guard")),
    ("task", "tree"),
    ("task", "notes", NEED),
    ("guard", "check", "--name", HOSTILE),
    ("reservations",),
    ("inbox", "--agent", "ada"),
    ("inbox",),
    ("budget", "show"),
    ("record", "log"),
    *(("record", "explain", f"{kind}/{HOSTILE}") for kind in ("lock", "sem", "pipeline", "agent")),
    *(("record", "explain", f"task/{kind} {HOSTILE}") for kind in ("t", "need", "last")),
    ("record", "explain", f"schedule/{HOSTILE}"),
    ("prime",),
    ("prime", "--agent", "ada"),
    ("doctor",),
)


def test_no_command_prints_a_name_or_a_reason_as_words_of_interlock(here: Here) -> None:
    here.exported["INTERLOCK_AGENT"] = HOSTILE
    (here.folder / "guards.toml").write_text(GUARDS)
    (here.folder / "pipelines.toml").write_text(PIPELINES)
    seen, token = 0, ""
    wrong = []
    for words in (*DEEDS, *LOOKS, *LOOKS):
        if words[:2] == ("agent", "join"):
            assert here.run(*words).status == 0
            continue
        done = here.run(*(token if word == "TOKEN" else word for word in words))
        if words[:2] == ("task", "claim") and done.status == 0:
            token = done.out.partition("token ")[2].partition(",")[0]
        text = done.out + done.err
        seen += CANARY in text
        assert "define" not in words or done.status == 0, text
        wrong += [(words, line) for line in (*leaks(text), *split_names(text))]
    assert not wrong, "\n".join(f"{words}: {line}" for words, line in wrong)
    assert seen > 90
