"""The reference is generated from the code, and hand-written pages agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from tests.docs.pages import ROOT

from interlock import errors, registry, settings
from interlock.client_context import GRANT_TTL, SESSION_TTL
from interlock.core import validate
from interlock.core.rate import Rate
from interlock.nouns.agents import session_rules
from interlock.nouns.grants import pool, pool_change
from interlock.nouns.messages import message
from interlock.nouns.messages import query as queries
from interlock.stores import SCHEMES, address, network
from interlock.stores.memory import MemoryStore
from interlock.stores.redis.store import LOG_BOUND

HOW_TO = ROOT / "docs" / "how-to"
REFERENCE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "interlock"


def test_the_reference_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_value_can_be_imported_from_where_the_page_says() -> None:
    page = (REFERENCE / "python.md").read_text()
    values = page.partition("## Other values\n")[2].partition("\n## ")[0]
    named = re.findall(r"\| `(\w+)` \|.*\| `(interlock[\w.]*)\.(\w+)` \|$", values, re.MULTILINE)
    assert len(named) == values.count("\n| `") > 20
    for name, module, own in named:
        assert isinstance(getattr(import_module(module), own), type)
        assert name.endswith(own)


def test_every_call_names_its_outcomes_and_each_is_on_the_page() -> None:
    page = (REFERENCE / "python.md").read_text()
    explained = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    calls = re.findall(r"^(?:\.\w+\(.*)?\) -> (.*)$", page, re.MULTILINE)
    assert not [each for each in calls if re.search(r"\wOutcome\b", each)]
    several = [names for each in calls if len(names := each.split(" | ")) > 1]
    assert len(several) > 40
    assert {name for names in several for name in names} <= explained | {"None"}
    tasks = page.partition("\n## Tasks\n")[2].partition("\n## ")[0]
    cancelled = tasks.partition("\n.cancel(")[2].partition("```")[0]
    assert cancelled.endswith("-> TaskCancelled | Unchanged | GivenFenced\n")


def test_no_page_is_made_with_an_outcome_that_nothing_defines() -> None:
    made = spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert made is not None
    assert made.loader is not None
    tool = module_from_spec(made)
    made.loader.exec_module(tool)

    def claim() -> tasks.ClaimOutcome: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(LookupError, match=r"tasks\.ClaimOutcome"):
        tool.signature(".claim", claim)


def test_every_command_has_its_place() -> None:
    page = (REFERENCE / "commands.md").read_text()
    for name in registry.names():
        assert f"### interlock {name}\n" in page


def test_every_error_is_explained() -> None:
    page = (HOW_TO / "find-out-what-is-wrong.md").read_text()
    for error in vars(errors).values():
        if not isinstance(error, type) or not issubclass(error, errors.InterlockError):
            continue
        if error not in (errors.InterlockError, errors.No):  # these are never raised themselves
            assert f"`{error.code}`" in page, error


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("a name", f"{validate.NAME_LIMIT} bytes"),
        ("metadata", f"{validate.METADATA_LIMIT // 1024} KiB"),
        ("waiters for one lock", f"{pool.WAITERS:,}"),
        ("longest duration", f"{validate.LONGEST / 86400:.0f} days"),
        ("shortest ttl", f"{MemoryStore().capabilities.min_ttl * 1000:.0f} ms"),
        ("ttl of a session", f"{SESSION_TTL:.0f} s"),
        ("ttl of a session from `agent join`", f"{session_rules.SHELL_TTL / 60:.0f} min"),
        ("ttl of a grant without a session", f"{GRANT_TTL / 60:.0f} min"),
        ("a message", f"{message.BODY_LIMIT // 1024**2} MiB"),
        ("readers of one mail", f"{message.RECIPIENTS_LIMIT}"),
        ("messages of a sender", f"{Rate().limit} in a second"),
        ("unread messages of an agent", f"{message.DEPTH:,}"),
        ("open questions", f"{queries.OPEN_LIMIT:,}"),
        ("wait for an answer", f"{queries.TIMEOUT:.0f} s"),
        ("read messages, and sent mail", f"a day, and the last {message.KEPT:,} of an agent"),
        ("alerts of a type, and mail to all", f"a day, and the last {message.ALERTS_KEPT:,}"),
        ("claim window", f"{pool_change.CLAIM_WINDOW:.0f} s"),
        ("entries of the log", f"{LOG_BOUND:,}"),
        ("a server that is away", f"{network.PATIENCE:.0f} s"),
    ],
)
def test_limits_are_as_the_code_has_them(what: str, value: str) -> None:
    page = (HOW_TO / "change-settings-and-limits.md").read_text()
    assert re.search(rf"^\| {re.escape(what)} \| {re.escape(value)} \|", page, re.MULTILINE)


def test_every_variable_that_the_code_reads_is_documented() -> None:
    page = (HOW_TO / "change-settings-and-limits.md").read_text()
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        found |= set(re.findall(r'"((?:INTERLOCK|IF)_[A-Z_]+)"', path.read_text()))
    assert len(found) >= 6
    for variable in found:
        assert f"`{variable}`" in page, variable


def test_every_setting_is_documented() -> None:
    page = (HOW_TO / "change-settings-and-limits.md").read_text()
    for known in settings._TABLES.values():
        for key in known:
            assert re.search(rf"\b{key}\b", page), key


def test_every_form_of_a_url_is_documented() -> None:
    page = (HOW_TO / "name-a-store-by-its-url.md").read_text()
    for scheme in SCHEMES:
        assert f"`{scheme}://" in page, scheme
    for options in address._OPTIONS.values():
        for option in options:
            assert f"`{option}=" in page, option


def test_everything_that_doctor_can_say_is_explained() -> None:
    page = (HOW_TO / "understand-what-doctor-says.md").read_text()
    found: set[str] = set()
    for path in (*SOURCE.glob("stores/*/*.py"), SOURCE / "faces" / "cli" / "fleet.py"):
        text = path.read_text()
        found |= set(re.findall(r'name="([a-z -]+)"', text))
        found |= set(re.findall(r'\b(?:_ok|_warn|_bad|_trouble|finding)\(\s*"([a-z -]+)"', text))
    assert len(found) >= 20
    for name in found:
        assert f"`{name}`" in page, name


def test_the_figures_of_the_readme_are_those_of_the_page() -> None:
    table = (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    page = (ROOT / "docs/explanation/speed.md").read_text()
    figures = re.findall(r"(?<= )\d+(?:,\d{3})*", table)
    assert len(figures) >= 10
    for figure in figures:
        assert re.search(rf"\| +{figure} \|", page), figure
