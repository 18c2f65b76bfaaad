"""Servers for git remotes: ``sshd`` and ``lighttpd`` with git's own backend, for one test."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
from typing import ClassVar

from interlock.testing.servers.process import HOST, PROBE, Server, find

# Without HOME the shell of the user would read its start-up file for every command of git, and some
# of these take longer than a push; the server's git would have the user's configuration, too.
_SSHD = """
Port {port}
ListenAddress {host}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv HOME={folder}
"""
_LIGHTTPD = """
server.port = {port}
server.bind = "{host}"
server.document-root = "{folder}"
server.modules = ("mod_alias", "mod_setenv", "mod_auth", "mod_authn_file", "mod_cgi")
alias.url = ("/git" => "{backend}")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "{folder}", "GIT_HTTP_EXPORT_ALL" => "1")
cgi.assign = ("" => "")
auth.backend = "plain"
auth.backend.plain.userfile = "{folder}/users"
auth.require = ("/git" => ("method" => "basic", "realm" => "git", "require" => "valid-user"))
"""


class GitServer(Server):
    """A server of the repositories in its folder."""

    def repository(self, name: str = "fleet.git") -> str:
        """Make a bare repository, unless it is there; returns its path."""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            _run("git", "init", "-q", "--bare", path)
        return path

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), PROBE).close()
        except OSError:
            return False
        return True


class SshServer(GitServer):
    """An ``sshd`` on loopback that lets this user in with a key of its own."""

    binary: ClassVar[str] = "sshd"
    package: ClassVar[str] = "openssh-server"

    def url(self, name: str = "fleet.git") -> str:
        """The store in a repository, as ``interlock.connect`` takes it."""
        return f"git+ssh://{getpass.getuser()}@{self.endpoint}{self.repository(name)}"

    def client_command(self) -> str:
        """The ssh command that logs in here: the value of GIT_SSH_COMMAND."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        words = ["ssh", "-F", "none", "-i", f"{self.folder}/key", "-o", "IdentitiesOnly=yes"]
        return shlex.join([*words, *(word for each in options for word in ("-o", each))])

    def _command(self) -> list[str]:
        (port,) = self._take_ports(1)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        for name in ("host_key", "key"):
            path = os.path.join(self.folder, name)
            if not os.path.exists(path):
                _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
        if os.path.exists(f"{self.folder}/key.pub"):
            os.replace(f"{self.folder}/key.pub", f"{self.folder}/authorized_keys")
        if os.geteuid() == 0:  # Debian's sshd wants this folder, which its service makes
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        config = _SSHD.format(port=port, host=HOST, folder=self.folder)
        _write(f"{self.folder}/sshd_config", config)
        return [find(self.binary, self.package), "-D", "-e", "-f", f"{self.folder}/sshd_config"]


def end_connections(folder: str) -> None:
    """End the ssh connections that are kept in a folder; each outlives its server by a minute."""
    for name in os.listdir(folder):
        end = ["ssh", "-F", "none", "-o", f"ControlPath={folder}/{name}", "-O", "exit", "x"]
        subprocess.run(end, check=False, capture_output=True)  # noqa: S603


class GitHttpServer(GitServer):
    """A ``lighttpd`` on loopback with git's backend, for the user ``ada`` with a password."""

    binary: ClassVar[str] = "lighttpd"
    package: ClassVar[str] = "lighttpd"
    password = "secret"  # noqa: S105 - of a server on loopback, for one test

    def url(self, name: str = "fleet.git") -> str:
        """The store in a repository, as ``interlock.connect`` takes it."""
        self.repository(name)
        return f"git+http://ada:{self.password}@{self.endpoint}/git/{name}"

    def let_in(self, password: str) -> None:
        """Change the password at the server."""
        _write(f"{self.folder}/users", f"ada:{password}\n")

    def _command(self) -> list[str]:
        (port,) = self._take_ports(1)
        os.makedirs(self.folder, exist_ok=True)
        self.let_in(self.password)
        backend = _run("git", "--exec-path") + "/git-http-backend"
        config = _LIGHTTPD.format(port=port, host=HOST, folder=self.folder, backend=backend)
        _write(f"{self.folder}/lighttpd.conf", config)
        binary = find(self.binary, self.package)
        modules = os.path.join(os.path.dirname(binary), "../root/usr/lib/lighttpd")
        beside = ("-m", modules) if os.path.isdir(modules) else ()
        return [binary, "-D", "-f", f"{self.folder}/lighttpd.conf", *beside]


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
