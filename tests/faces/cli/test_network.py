"""Stores across a network: the same commands, and a server that is away or says no."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from asyncio import run
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.shell import PATIENCE, Shell, until

import interlock
from interlock import aio
from interlock.testing.servers import EtcdServer, RedisServer

SECRET = "open-sesame"
NOBODY = ("redis://:{}@127.0.0.1:1/0?ns=shop", "etcd://root:{}@127.0.0.1:1/shop")


@pytest.fixture(params=["redis", "etcd"])
def unmade(bare: Shell, request: pytest.FixtureRequest) -> Shell:
    """A shell whose store is on a server, where nobody has made it."""
    bare.exported["INTERLOCK_STORE"] = request.getfixturevalue(f"{request.param}_url")
    return bare


@pytest.fixture
def there(unmade: Shell) -> Shell:
    """A shell whose store is on a server."""
    assert unmade.json("init")[1]["outcome"] == "created"
    return unmade


@pytest.fixture(scope="module", params=["redis", "etcd"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer | EtcdServer]:
    """A server that lets in nobody without the password."""
    folder = tmp_path_factory.mktemp("guarded")
    server: RedisServer | EtcdServer = RedisServer(folder, password=SECRET)
    if request.param == "etcd":
        server = EtcdServer(folder, auth=("root", SECRET))
    with server:
        yield server


def test_a_store_on_a_server_is_used_like_a_file(there: Shell) -> None:
    _, grant = there.json("lock", "acquire", "merge", "--agent", "ada")
    status, busy = there.json("lock", "acquire", "merge", "--agent", "bob")
    assert (status, busy["holder"]) == (1, "ada")
    assert there.json("init")[1]["outcome"] == "exists"
    assert there.json("agent", "list") == (0, {"agents": [], "known": [], "paused": [], "count": 0})
    assert [line["verb"] for line in there.json("record", "log")[1]["entries"]] == ["lock.acquire"]
    token = str(grant["token"])
    assert there.json("lock", "release", "merge", "--agent", "ada", "--token", token)[0] == 0


def test_shells_talk_to_each_other_across_a_server(there: Shell) -> None:
    there.json("subscribe", "build", "--agent", "bob")
    waiter = there.start("wait", "--json", "--agent", "bob")
    there.json("alert", "build", '{"n": 1}', "--agent", "ada")
    assert json.loads(waiter.communicate(timeout=PATIENCE)[0])["messages"][0]["data"] == {"n": 1}
    asker = there.start("query", "bob", "which?", "--json", "--agent", "ada", "--timeout", "60s")
    words = ("inbox", "--kind", "query", "--agent", "bob")
    found = until(lambda: there.json(*words)[1].get("messages"), "the question")[0]
    assert there.run("reply", found["id"], "this", "--agent", "bob").status == 0
    assert json.loads(asker.communicate(timeout=PATIENCE)[0])["answer"] == "this"
    follower = there.start("subscribe", "build", "--follow", "--json", "--agent", "bob")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["data"] == {"n": 1}
    until(lambda: there.json("inbox", "--agent", "bob")[1]["messages"] == [], "the ack")


def test_the_doctor_looks_at_the_server_and_at_what_all_stores_share(there: Shell) -> None:
    done = there.run("doctor")
    assert done.status == 0, done
    assert {line[:4] for line in done.out.splitlines()} <= {"ok  ", "warn"}
    assert "(from INTERLOCK_STORE)" in done.out
    names = [check["name"] for check in there.json("doctor")[1]["checks"]]
    assert names[:2] == ["python", "store"]
    assert {"writing", "integrity", "stale grants", "lapsed sessions"} <= set(names)
    assert there.json("record", "log")[1]["entries"] == []


def test_the_facts_of_a_server_are_short_lines(there: Shell) -> None:
    status, facts = there.json("store", "info")
    assert status == 0
    assert facts["engine"] in there.exported["INTERLOCK_STORE"]
    for line in there.run("store", "info").out.splitlines():
        assert len(line) < 100
        assert "None" not in line
        assert "{" not in line


def test_init_and_the_facts_say_what_replicas_mean_for_the_durability(
    bare: Shell, tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "one") as master:
        bare.exported["INTERLOCK_STORE"] = url = master.url("shop")
        assert bare.run("init").err == ""
        assert "failover" not in bare.json("store", "info")[1]
        with RedisServer(tmp_path / "two", replicaof=master):
            until(lambda: master.info("replication")["connected_slaves"] == "1", "the replica")
            told = bare.run("init").err
            assert url in told
            assert "a failover to one may lose the last acknowledged commits" in told
            assert "in every grade of durability" in bare.json("store", "info")[1]["failover"]


def test_after_a_failover_the_doctor_names_the_loss_that_verify_sees(
    bare: Shell, tmp_path: Path
) -> None:
    with (
        RedisServer(tmp_path / "one") as master,
        RedisServer(tmp_path / "two", replicaof=master) as replica,
    ):
        url = f"redis://{master.endpoint},{replica.endpoint}/0?ns=shop"
        bare.exported["INTERLOCK_STORE"] = url
        with interlock.connect(url, "ada") as fleet:
            assert fleet.locks.acquire("first")
            revision = ("HGET", "{shop}:meta", "rev")
            until(lambda: replica.command(*revision) == master.command(*revision), "replication")
            replica.command("REPLICAOF", "NO", "ONE")
            assert fleet.locks.acquire("lost")
            names = [check["name"] for check in bare.json("doctor")[1]["checks"]]
            assert not {"failover", "losses"} & set(names)
            master.kill()
            assert fleet.locks.acquire("later")
        done = bare.run("doctor")
        losses = [line for line in done.out.splitlines() if line.startswith("bad  losses")]
        found = bare.json("record", "verify")
        assert found[0] == 1
        assert done.status != 0
        assert found[1]["findings"][0]["says"] in losses[0], done.out
        assert "ok   failover: this server took over" in done.out


def test_what_a_program_runs_finds_the_same_store_from_anywhere(there: Shell) -> None:
    url = there.exported.pop("INTERLOCK_STORE")
    there.configure(f'store = "{url}"\n')
    inner = f"cd / && {sys.executable} -m interlock lock show deploy --json"
    done = there.run("lock", "run", "deploy", "--agent", "ada", "--", "sh", "-c", inner)
    assert (done.status, done.err) == (0, "")
    assert '"holder":"ada"' in done.out


def test_the_environment_leads_to_an_etcd(bare: Shell, etcd_server: EtcdServer) -> None:
    host, _, port = etcd_server.endpoint.partition(":")
    bare.exported |= {"IF_ETCD_HOST": host, "IF_ETCD_PORT": port}
    store = f"etcd://{host}:{port}/interlock"
    assert bare.json("init")[1]["store"] == store
    assert not (bare.folder / ".interlock").exists()
    assert f"ok   store: {store} (from IF_ETCD_HOST and IF_ETCD_PORT)" in bare.run("doctor").out


@pytest.mark.parametrize(
    "words",
    [
        "init", "init --json", "doctor", "doctor --json", "store info", "store info --json",
        "lock list -vv", "lock acquire m --agent ada", "agent join --agent ada",
        "lock run m2 --agent ada -vv -- true", "record log --json",
    ],
)  # fmt: skip
def test_a_password_is_never_shown(
    bare: Shell, guarded: RedisServer | EtcdServer, words: str
) -> None:
    bare.exported["INTERLOCK_STORE"] = guarded.url("shop")
    bare.run("init")
    done = bare.run(*words.split())
    assert done.status in (0, 1), done
    assert SECRET not in done.out + done.err


def test_a_wrong_password_is_one_line_without_it(
    bare: Shell, guarded: RedisServer | EtcdServer
) -> None:
    url = guarded.url("shop").replace(SECRET, "wrong-password")
    for words in (("lock", "list"), ("init",), ("demo",)):
        done = bare.run(*words, "--store", url)
        assert (done.status, done.out, done.err.count("\n")) == (4, "", 1), done
        assert done.err.startswith("interlock: ")
        assert "wrong-password" not in done.err
    done = bare.run("doctor", "--store", url)
    assert done.status == 4
    assert "wrong-password" not in done.out + done.err
    assert [line for line in done.out.splitlines() if line.startswith("bad  store: ")]


def test_a_server_that_is_away_is_one_line_and_status_4(bare: Shell) -> None:
    """All at once: each of them asks for ten seconds before it gives up."""
    commands = [
        ("lock list --json", 0), ("doctor", 1), ("demo", 0), ("init", 1),
        ("record log --follow", 0), ("lock run m --agent ada -- true", 1),
        ("lock acquire m --agent ada --wait 1s", 0),
    ]  # fmt: skip
    begun = []
    for words, which in commands:
        before, dashes, program = words.partition(" --")
        store = ("--store", NOBODY[which].format(SECRET))
        begun.append(bare.start(*before.split(), *store, *(dashes + program).split()))
    for (words, _), process in zip(commands, begun, strict=True):
        out, err = process.communicate(timeout=PATIENCE * 2)
        assert process.returncode == 4, (words, out, err)
        said = out + err
        assert SECRET not in said
        assert "Traceback" not in said
        assert "127.0.0.1:1" in said
        assert said.count("\n") == (3 if words == "doctor" else 1), said


@pytest.mark.parametrize(
    "url",
    [
        "redis://", "redis://host:port", "redis://host/db", "redis://h?nss=x", "redis+unix://h",
        "etcd://", "etcd://h:99999", "etcd:///shop", "etcd://h/a b", "rediss:///0",
        "nosql://root:open-sesame@h",
    ],
)  # fmt: skip
def test_a_wrong_url_is_one_clear_line(bare: Shell, url: str) -> None:
    for words in (("init",), ("lock", "list"), ("doctor",), ("demo",)):
        done = bare.run(*words, "--store", url)
        assert done.status in (2, 4), done
        assert (done.out + done.err).count("\n") <= (2 if words == ("doctor",) else 1), done
        assert "unexpected" not in done.out + done.err
        assert SECRET not in done.out + done.err
    assert list(bare.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("engine", "package", "named"),
    [
        ("redis", "hiredis", "hiredis"),
        ("etcd", "grpc", "grpcio and protobuf"),
        ("etcd", "google.protobuf", "grpcio and protobuf"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_remedy(
    bare: Shell, engine: str, package: str, named: str
) -> None:
    words = ["lock", "list", "--store", f"{engine}://localhost"]
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from interlock.faces.cli.command import run; sys.exit(run({words!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=bare.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "")
    remedy = f"install with: pip install 'interlock[{engine}]', or '.[{engine}]' in a clone"
    assert done.stderr == f"interlock: {engine} needs {named}; {remedy}\n"


def test_who_runs_a_program_hears_when_the_store_is_away(bare: Shell, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        words = ("lock", "run", "m", "--agent", "ada", "--ttl", "10s", "--store", server.url())
        bare.run("init", "--store", server.url())
        process = bare.start(*words, "--", "sh", "-c", "echo begun; exec sleep 60")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        server.kill()
        away = process.stderr.readline()
        assert away.startswith(f"interlock: redis://{server.endpoint}")
        assert "does not answer" in away
        server.restart()
        assert "answers again after " in process.stderr.readline()
        process.terminate()
        assert process.communicate() == ("", "")
        assert process.returncode == 128 + signal.SIGTERM


def test_the_words_for_help_name_the_servers(bare: Shell) -> None:
    assert "redis://" in bare.run("init", "--help").out
    assert "etcd://" in bare.run("lock", "list", "--help").out


MISTYPED = "there is no store at "


@pytest.mark.parametrize(
    "words",
    [
        ("health",),
        ("task", "list"),
        ("lock", "show", "deploy"),
        ("task", "next", "--agent", "ada"),
        ("task", "claim", "t1", "--agent", "ada"),
        ("store", "info"),
        ("inbox", "--agent", "ada"),
        ("observe", "--counts"),
        ("record", "verify"),
    ],
    ids=" ".join,
)
def test_a_look_at_a_store_that_nobody_made_says_so(unmade: Shell, words: tuple[str, ...]) -> None:
    for _ in range(2):  # a look makes no store
        done = unmade.run(*words)
        assert (done.status, done.out) == (4, "")
        assert MISTYPED in done.err
        assert "check the name, or make one: " in done.err
        assert "interlock init --store " in done.err
    status, error = unmade.json(*words)
    assert (status, error["error"]) == (4, "store_missing")


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "release", "merge"),
        ("sem", "resize", "builds", "3"),
        ("task", "done", "t1", "--token", "1"),
        ("task", "run", "t1", "--", "true"),
        ("ack", "m1"),
        ("budget", "drop", "models"),
        ("agent", "resume", "bob"),
        ("schedule", "pause", "nightly"),
        ("pipeline", "advance", "p1"),
        ("swarm", "deny", "other"),
    ],
    ids=" ".join,
)
def test_a_change_of_what_is_there_makes_no_store(
    bare: Shell, redis_url: str, words: tuple[str, ...]
) -> None:
    bare.exported |= {"INTERLOCK_STORE": redis_url, "INTERLOCK_AGENT": "ada"}
    for _ in range(2):
        done = bare.run(*words)
        assert (done.status, done.out) == (4, ""), done
        assert MISTYPED in done.err
    assert bare.run("health").status == 4


def test_a_store_is_known_as_one_as_soon_as_it_was_made(unmade: Shell) -> None:
    doctor = unmade.run("doctor")
    assert doctor.status == 4
    assert f"bad  store: {MISTYPED}" in doctor.out
    init = unmade.run("init")
    assert (init.status, init.err) == (0, "")
    assert unmade.json("init")[1]["outcome"] == "exists"
    assert unmade.run("health").status == 0
    assert unmade.json("task", "next", "--agent", "ada")[1]["outcome"] == "nothing"
    assert unmade.run("doctor").status == 0


def test_a_command_that_makes_a_store_in_passing_says_so(unmade: Shell) -> None:
    done = unmade.run("task", "add", "t1", "--agent", "ada")
    assert done.status == 0
    assert "there was no store at " in done.err
    assert unmade.run("task", "add", "t2", "--agent", "ada").err == ""
    assert unmade.run("task", "list").status == 0


def test_a_command_that_waits_warns_of_a_store_that_nobody_made_and_waits(unmade: Shell) -> None:
    waiter = unmade.start("task", "next", "--wait", "60s", "--agent", "ada")
    assert waiter.stderr is not None
    assert "there is no store at " in waiter.stderr.readline()
    unmade.run("task", "add", "t1", "--agent", "bob")
    assert "t1" in waiter.communicate(timeout=PATIENCE)[0]


def test_a_program_logs_that_its_store_is_new_and_prints_nothing(
    unmade: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    url = unmade.exported["INTERLOCK_STORE"]
    program = f"import interlock; interlock.connect({url!r}, join=False).close()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")

    async def connects() -> None:
        await (await aio.connect(url, join=False)).close()

    def blocking() -> None:
        interlock.connect(url, join=False).close()

    def asynchronous() -> None:
        run(connects())

    for connect in (blocking, asynchronous):
        caplog.clear()
        connect()
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "there was no store at " in caplog.text
    with interlock.connect(url, "ada") as fleet:
        fleet.tasks.publish("t1")
    caplog.clear()
    interlock.connect(url, join=False).close()
    assert caplog.text == ""
