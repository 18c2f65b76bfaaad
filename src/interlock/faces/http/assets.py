"""The files of the page, served from the package.

Only files that are in the folder when the server starts are served, by their exact names: no path
of a request is ever opened.  The policy allows no script, style or connection but our own.

The document names its files below a folder that is called after their content, and modules import
each other by relative paths: so a browser keeps them for good, a second visit asks for the document
alone, and a new version is never mixed with an old one.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from interlock.faces import page

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS = {
    "Content-Security-Policy": CSP,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer of the server has."""
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
INDEX = "index.html"
_NO_PAGE = b"""<!doctype html><meta charset="utf-8"><title>Interlock</title>
<p>This server has the API alone: see <a href="/openapi.json">/openapi.json</a>.</p>
"""


_ROOT = b"/assets/"


class Asset(NamedTuple):
    """One file: its bytes, its type, the mark by which a browser knows it, and how it caches it."""

    data: bytes
    type: str
    etag: str
    cached: str = "no-cache"


class PageFiles(NamedTuple):
    """All files of the page by their names below its folder, and the name of this version."""

    files: dict[str, Asset]
    version: str

    @property
    def document(self) -> Asset:
        """The document."""
        return self.files[INDEX]

    def get(self, name: str) -> Asset | None:
        """A file by its name, or by its name below that of the version."""
        version, _, rest = name.partition("/")
        if version != self.version:
            return self.files.get(name)
        found = self.files.get(rest)
        return None if found is None else found._replace(cached="max-age=31536000, immutable")


def load() -> PageFiles:
    """All files of the page."""
    found = {INDEX: _asset(INDEX, _NO_PAGE)}
    for place in page.__path__:
        for folder, _, names in os.walk(place):
            for name in names:
                whole = os.path.join(folder, name)
                if os.path.splitext(name)[1] in TYPES and os.path.isfile(whole):
                    inside = os.path.relpath(whole, place).replace(os.sep, "/")
                    with open(whole, "rb") as file:
                        found[inside] = _asset(name, file.read())
    marks = "".join(f"{name} {found[name].etag}\n" for name in sorted(found))
    version = hashlib.sha256(marks.encode()).hexdigest()[:16]
    below = b"%s%s/" % (_ROOT, version.encode())
    found[INDEX] = _asset(INDEX, found[INDEX].data.replace(_ROOT, below))
    return PageFiles(found, version)


def _asset(name: str, data: bytes) -> Asset:
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Asset(data, TYPES[os.path.splitext(name)[1]], etag)
