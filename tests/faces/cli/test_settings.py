"""``.interlock/config.toml``, for the command line and the library alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faces.shell import Here, Shell

import interlock
from interlock import store_location

CONFIG = """
[lock."*"]
ttl = "2m"

[lock."deploy/eu"]
ttl = 30
max_hold = "10m"
"""


@pytest.fixture
def configured(ada: Shell) -> Shell:
    ada.configure(CONFIG)
    return ada


def expires(shell: Shell, *words: str) -> float:
    return float(shell.json("lock", "acquire", *words)[1]["expires_in"])


def test_a_lock_has_its_own_terms(configured: Shell) -> None:
    assert expires(configured, "any") == 120
    assert expires(configured, "deploy/eu") == 30
    assert configured.json("lock", "show", "deploy/eu")[1]["max_hold"] == 600
    assert expires(configured, "waited", "--wait", "1s") == 120


def test_the_environment_stands_above_the_file_and_options_above_both(configured: Shell) -> None:
    configured.exported["INTERLOCK_LOCK_TTL"] = "40s"
    assert expires(configured, "a") == 40
    assert expires(configured, "b", "--ttl", "50s") == 50


def test_the_library_reads_the_same_file(
    configured: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(configured.folder)
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    with interlock.connect(agent="ada") as fleet:
        outcome = fleet.locks.acquire("deploy/eu")
        assert isinstance(outcome, interlock.Acquired)
        assert outcome.expires_in == 30
        assert fleet.locks.show("deploy/eu").max_hold == 600
        with fleet.lock("block") as held:
            assert fleet.locks.show("block").expires_in == pytest.approx(120, abs=1)
            assert not held.lost


def test_the_store_may_be_elsewhere(ada: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere") / "s.db"
    ada.configure(f'store = "sqlite://{elsewhere}"\n')
    assert ada.json("init")[1] == {"outcome": "created", "store": str(elsewhere)}
    assert ada.json("store", "info")[1]["path"] == str(elsewhere)
    assert "config.toml" in ada.run("doctor").out


def test_a_relative_path_begins_at_the_file_whatever_the_working_directory(ada: Shell) -> None:
    ada.configure('store = "../shared.db"\n')
    assert ada.json("init")[1] == {"outcome": "created", "store": str(ada.folder / "shared.db")}
    (ada.folder / "below").mkdir()
    below = Shell(ada.folder / "below")
    assert below.json("store", "info")[1]["path"] == str(ada.folder / "shared.db")


def test_the_store_may_be_on_a_server(ada: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERLOCK_STORE", "IF_ETCD_HOST", "IF_ETCD_PORT"):
        monkeypatch.delenv(name, raising=False)
    url = "redis://shop.example/0?ns=shop"
    ada.configure(f'store = "{url}"\n')
    assert store_location.locate(str(ada.folder)) == store_location.StoreLocation(
        url, "config.toml"
    )


@pytest.mark.parametrize(
    "text",
    [
        "store = ''",
        "store = 1", "lock = 1", "[lock]\nmerge = 1", "[lok.merge]", "[lock.merge]\nttl = 'soon'",
        "[lock.merge]\nttl = true", "[lock.merge]\nttl = []", "[lock.merge]\ntll = '3s'", "= 3",
        "[lock.merge]\nttl = '1ms'", "[lock.other]\nmax_hold = 0", "[lock.'*']\nttl = -1",
        "[lock.merge]\nttl = inf", "[lock.default]\nttl = '2m'",
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(here: Here, text: str) -> None:
    here.configure(text)
    done = here.run("lock", "acquire", "merge")
    assert done.status == 2
    assert "config.toml" in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_duration_is_found_by_its_table(ada: Shell) -> None:
    ada.configure("[lock.'*']\nttl = '1ms'\n")
    done = ada.run("lock", "acquire", "merge")
    assert '.interlock/config.toml: [lock."*"]: the ttl 1ms is too short' in done.err
    ada.configure("")
    ada.exported["INTERLOCK_LOCK_TTL"] = "1ms"
    assert "the INTERLOCK_LOCK_TTL 1ms is too short" in ada.run("lock", "acquire", "merge").err


def test_what_is_for_all_locks_is_no_lock_of_its_own(configured: Shell) -> None:
    assert expires(configured, "default") == 120
    assert configured.json("lock", "acquire", "*")[1]["error"] == "bad_name"
    configured.configure("[lock.default]\nttl = '9s'\n")
    assert 'write [lock."*"] for all' in configured.run("lock", "acquire", "merge").err


def test_a_type_of_questions_has_its_own_timeout(
    ada: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.configure(
        '[query."*"]\ntimeout = "50ms"\n[query.slow]\ntimeout = "70ms"\n'
        '[query.timeouts]\nreview = "60ms"\n'
    )
    ada.run("inbox", "--agent", "bob")
    ada.run("inbox", "--agent", "slow")

    def timeout(*words: str) -> float:
        return float(ada.json("query", *words)[1]["timeout"])

    assert timeout("bob", "x") == 0.05
    assert timeout("slow", "x") == 0.07
    assert timeout("slow", "x", "--type", "review") == 0.06
    assert timeout("bob", "x", "--type", "other") == 0.05
    assert timeout("bob", "x", "--type", "review", "--timeout", "40ms") == 0.04
    ada.exported["INTERLOCK_QUERY_TIMEOUT"] = "30ms"
    assert timeout("bob", "x", "--type", "review") == 0.03
    monkeypatch.chdir(ada.folder)
    monkeypatch.delenv("INTERLOCK_STORE", raising=False)
    with interlock.connect(agent="eve") as fleet:
        outcome = fleet.messages.query("bob", "x", type="review")
        assert isinstance(outcome, interlock.TimedOut)
        assert outcome.timeout == 0.06
    del ada.exported["INTERLOCK_QUERY_TIMEOUT"]
    ada.configure('[query.timeouts]\nreview = "soon"\n')
    said = ada.run("query", "bob", "x", "--type", "review")
    assert said.status == 2
    assert "[query.timeouts]" in said.err
