"""The URL of a store in a git repository, taken apart.

    git+file:///srv/fleet.git[?branch=NAME]
    git+ssh://[user@]host[:port]/path/fleet.git       git+https://[user@]host/path/fleet.git

branch=NAME    the branch that is the store; ``interlock`` unless given
pace=SECONDS   the least time between two pushes to the remote, for hosts that limit them
sign=yes       sign each commit as the user's git does it; ``no`` signs none, and without it the
               user's configuration decides (``commit.gpgSign``)

``shown`` is what messages say, and ``remote`` is what git is run with: neither holds a password.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from interlock.errors import BadInput, NotAllowed

BRANCH = "interlock"
_OPTIONS = ("branch", "pace", "sign")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*(/[A-Za-z0-9_][A-Za-z0-9._@-]*)*", re.ASCII)
_LONGEST_PACE = 3600.0
_NO_PLACES = ("/proc/", "/dev/fd/", "/sys/")


class GitAddress(Struct, frozen=True, kw_only=True):
    """Where a remote is, which of its branches is the store, and how to treat it."""

    remote: str
    user: str = ""
    password: str = ""
    branch: str = BRANCH
    pace: float = 0.0
    sign: bool | None = None
    shown: str = ""

    @property
    def file(self) -> str:
        """The folder of a remote on this machine; empty for any other."""
        return self.remote if self.remote.startswith("/") else ""

    @property
    def remote_shown(self) -> str:
        """The remote for display, as git takes it."""
        return self.shown.partition("?")[0].removeprefix("git+").removeprefix("file://")

    @property
    def ref(self) -> str:
        """The ref of the branch."""
        return f"refs/heads/{self.branch}"

    @property
    def live(self) -> str:
        """The folder of the refs that the hosts of the branch move; no branch has a ``+``."""
        return f"refs/interlock/live/{self.branch.replace('/', '+')}/"


def parse(url: str) -> GitAddress:
    """The parts of a URL; an error says what it should look like."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    shown = f"{scheme}://{login.partition(':')[0]}{at}{host}{slash}{path}"
    options = _options(query, shown)
    branch = options.get("branch", BRANCH)
    if _BRANCH.fullmatch(branch) is None or ".." in branch or branch.endswith((".lock", ".")):
        raise BadInput(f"{shown} has branch={branch!r:.80}, which git takes for no branch")
    if branch != BRANCH:
        shown += f"?branch={branch}"
    if scheme == "git+file":
        if authority or not path:
            raise BadInput(f"{shown} is not like git+file:///absolute/path.git")
        remote = _folder("/" + unquote(path), shown)
    elif not host or not path:
        raise BadInput(f"{shown} is not like {scheme}://host/path.git")
    elif scheme == "git+ssh" and ":" in login:
        raise BadInput(f"{shown} is with a password, which ssh does not take; use a key")
    else:
        # With a name alone git would first try it without a password: a failed login each time.
        name = "" if ":" in login else f"{login}{at}"
        remote = f"{scheme.removeprefix('git+')}://{name}{host}/{path}"
    user, _, password = map(unquote, login.partition(":"))
    if not f"{user}{password}".isprintable():
        raise BadInput(f"{shown} is with a name or a password that is no line of text")
    return GitAddress(
        remote=remote,
        user=user,
        password=password,
        branch=branch,
        pace=_pace(options.get("pace", "0"), shown),
        sign=options["sign"] == "yes" if "sign" in options else None,
        shown=shown,
    )


def _folder(path: str, shown: str) -> str:
    """The folder of a remote on this machine; NotAllowed for one that a commit could have made.

    A push runs the hooks of such a remote, and a checkout could write them.
    """
    remote = folder = os.path.realpath(path)
    if any(f"{each}/".startswith(_NO_PLACES) for each in (os.path.normpath(path), remote)):
        raise NotAllowed(f"{shown} leads through the system's own folders; name the real folder")
    while folder != "/" and os.path.basename(folder) != ".git":
        folder = os.path.dirname(folder)
        if folder != remote and os.path.lexists(os.path.join(folder, ".git")):
            raise NotAllowed(
                f"{shown} is inside of the work tree {folder}, where a commit could change its"
                " hooks; move the remote out of it"
            )
    return remote


def _options(query: str, shown: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(_OPTIONS)):
        known = ", ".join(_OPTIONS)
        raise BadInput(f"{shown} has the option {unknown[0]!r:.80}, which is none of: {known}")
    if options.get("sign", "no") not in ("yes", "no"):
        raise BadInput(f"{shown} has sign={options['sign']!r:.80}; write sign=yes or sign=no")
    return options


def _pace(text: str, shown: str) -> float:
    try:
        pace = float(text.removesuffix("s"))
    except ValueError:
        pace = -1.0
    if not 0 <= pace <= _LONGEST_PACE:
        raise BadInput(f"{shown} has pace={text!r:.80}; give seconds between pushes, such as 10")
    return pace
