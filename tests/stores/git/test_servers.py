"""Remotes across a network: a real sshd, and a real http server with git's backend."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.stores.git.conftest import Opens

from interlock.errors import StoreAway, StoreMissing, StoreRefused
from interlock.store import Check, Put, Range, Store
from interlock.stores.git.ssh import own_folder
from interlock.testing.conformance.place import committed, there, txn, write
from interlock.testing.servers import GitHttpServer, SshServer
from interlock.testing.servers.process import HOST


def use(one: Store, two: Store) -> None:
    """What every remote has to do."""
    write(one, Put("p/a", b"1"), Put("live/s", b"", ttl=60.0))
    watch = two.watch("p/", two.read().revision)
    assert there(two, "p/a").value == b"1"
    write(one, Put("p/b", b"2"))
    assert watch.take(10.0)
    answer = two.commit(txn(Put("p/a", b"3"), checks=(Check("p/a", "absent"),)))
    assert answer.items["p/a"] is not None
    for _ in range(3):
        assert one.renew((Put("live/s", b"", ttl=60.0),)) == {"live/s"}
    works = [txn(Put(f"q/{number}", b"")) for number in range(20)]

    async def together() -> None:
        await asyncio.gather(*(two.transact_async(lambda _, w=work: w) for work in works))  # type: ignore[attr-defined]

    asyncio.run(together())
    assert len(one.read(Range("q/")).ranges[Range("q/")]) == 20


def test_two_hosts_share_a_store_over_a_connection_that_is_kept(
    ssh: SshServer, host: Opens
) -> None:
    use(host("a", url=ssh.url()), host("b", url=ssh.url()))
    assert ssh.log().count("Accepted publickey") <= 3


def test_a_connection_is_kept_where_the_folders_of_the_user_have_long_paths(
    ssh: SshServer, host: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.git.ssh.SHORTEST", os.environ["XDG_RUNTIME_DIR"])
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    store = host("long" * 20, url=ssh.url())
    for number in range(3):
        write(store, Put(f"p/{number}", b""))
    assert ssh.log().count("Accepted publickey") == 1
    command = shlex.split(store.repository.environment()["GIT_SSH_COMMAND"])
    subprocess.run([*command, "-O", "exit", "x"], check=True, capture_output=True)


def test_a_connection_is_kept_only_where_no_other_user_could_put_one(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert own_folder(str(folder))
    folder.chmod(0o770)
    assert not own_folder(str(folder))
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path)
    assert not own_folder(str(folder))


def test_a_command_at_the_ssh_server_runs_no_start_up_file_of_the_user(ssh: SshServer) -> None:
    command = [*shlex.split(ssh.client_command()), "-p", str(ssh.port), HOST, "echo $HOME"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(ssh.folder)


def test_doctor_says_why_each_answer_over_ssh_takes_long(
    ssh: SshServer, host: Opens, tmp_path: Path
) -> None:
    keys, slow = Path(ssh.folder, "authorized_keys"), tmp_path / "slow"
    shell = f"test ! -e {slow} || sleep 0.3; eval $SSH_ORIGINAL_COMMAND"
    keys.write_text(f'command="{shell}" {keys.read_text()}')
    store = host("a", url=ssh.url())
    slow.touch()
    said = {finding.name: finding for finding in store.examine()}["remote"]
    assert "~/.bashrc" in said.remedy


def test_an_ssh_server_that_restarts_is_reached_again(ssh: SshServer, host: Opens) -> None:
    store = host("a", url=ssh.url(), patience=1.0)
    write(store, Put("a", b"1"))
    ssh.restart()
    write(store, Put("a", b"2"))
    assert there(store, "a").value == b"2"


def test_an_ssh_key_that_is_not_let_in_is_refused(ssh: SshServer, host: Opens) -> None:
    Path(ssh.folder, "authorized_keys").write_text("")
    with pytest.raises(StoreRefused, match="Permission denied"):
        host("a", url=ssh.url())


def test_two_hosts_share_a_store_over_http(http: GitHttpServer, host: Opens) -> None:
    use(host("a", url=http.url()), host("b", url=http.url()))


def with_password(http: GitHttpServer, password: str) -> str:
    """The URL with another password, which the server takes, too."""
    http.let_in(password)
    return http.url().replace(f":{http.password}@", f":{quote(password, safe='')}@")


def test_a_password_is_never_shown(http: GitHttpServer, host: Opens, tmp_path: Path) -> None:
    password, processes = f"pw{os.urandom(4).hex()}", tmp_path / "processes"
    store = host("a", url=with_password(http, password))
    hook = Path(http.repository("fleet.git"), "hooks/pre-receive")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nps -ww -eo args > {processes}\n")
    hook.chmod(0o755)
    write(store, Put("a", b"1"))
    assert "git-remote-http" in processes.read_text()
    for text in (processes.read_text(), str(store.info()), store.address.shown):
        assert password not in text


def test_no_login_fails_on_the_way(http: GitHttpServer, host: Opens) -> None:
    write(host("a", url=http.url()), Put("a", b"1"))
    assert "password doesn't match" not in http.log()


def test_a_password_reaches_the_server_as_it_is(http: GitHttpServer, host: Opens) -> None:
    password = "a b'c\"d\\n$(e)`f`%@:/?#\u00fc"
    write(host("a", url=with_password(http, password)), Put("a", b"1"))


def test_credentials_that_expire_are_refused_and_renewed_ones_work(
    http: GitHttpServer, host: Opens
) -> None:
    store, session = host("a", url=http.url(), patience=0.5), Put("live/s", b"", ttl=60.0)
    write(store, Put("a", b"1"), session)
    assert store.renew((session,))
    http.let_in("another")
    with pytest.raises(StoreRefused, match="refuses you"):
        store.read("a")
    with pytest.raises(StoreRefused):
        write(store, Put("a", b"2"))
    with pytest.raises(StoreRefused):
        store.renew((session,))
    http.let_in(http.password)
    write(store, Put("a", b"3"))
    assert store.renew((session,))
    assert store.info()["beats"] == "as refs"


def test_an_http_server_that_is_down_is_away(http: GitHttpServer, host: Opens) -> None:
    store = host("a", url=http.url(), patience=0.5)
    write(store, Put("a", b"1"))
    http.kill()
    with pytest.raises(StoreAway):
        write(store, Put("a", b"2"))
    http.start()
    committed(store.commit(txn(Put("a", b"3"))))


def test_a_repository_that_is_not_there_is_missing_over_http(
    http: GitHttpServer, host: Opens
) -> None:
    with pytest.raises(StoreMissing):
        host("a", url=http.url().replace("fleet", "nothing"))
