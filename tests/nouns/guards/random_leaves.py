"""Random leaves of every kind, with legal and odd fields."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import KINDS, build

TEXTS = st.text(st.sampled_from("ab1./\\,=!'\" \n-é()#"), min_size=1, max_size=8)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "slots": st.integers(1, 9),
    "none_ok": st.booleans(),
    "shell": st.booleans(),
    "state": st.sampled_from(("pending", "complete", "dead")),
    "expect": st.integers(0, 255) | st.just("failure"),
    "timeout": st.integers(1, 3_600_000).map(lambda ms: ms / 1000),
    "env": st.lists(st.sampled_from(("PATH", "HOME", "LANG")), unique=True),
    "run": st.lists(TEXTS, min_size=1, max_size=3),
}


@st.composite
def leaves(draw: st.DrawFn) -> c.Condition:
    """A legal leaf."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    names = {*kind.required, *draw(st.lists(st.sampled_from(sorted(kind.fields))))}
    given = {name: draw(FIELDS.get(name, TEXTS)) for name in sorted(names)}
    if given.get("shell"):
        given["run"] = given["run"][:1]
    if kind.name == "file_contains" and ("text" in given) == ("pattern" in given):
        given.pop("pattern", None)
        given.setdefault("text", "x")
    try:
        return build(kind.name, given)
    except BadInput:  # a text that is no name
        plain = {name: value for name, value in given.items() if name in FIELDS}
        if "run" in plain:
            plain["run"] = ["x,y", *plain["run"][1:]]
        some = dict.fromkeys((name for name in given if name not in FIELDS), "x,y\\")
        branches = dict.fromkeys(("branch", "into", "prefix", "needs", "pattern"), "x,y")
        return build(kind.name, {**plain, **{n: branches.get(n, v) for n, v in some.items()}})
