"""The files of the page, served from the package.

Only files that are in the folder when the server starts are served, by their exact names: no path
of a request is ever opened.  The policy allows no script, style or connection but our own.
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


class Asset(NamedTuple):
    """One file: its bytes, its type, and the mark by which a browser knows it again."""

    data: bytes
    type: str
    etag: str


def load() -> dict[str, Asset]:
    """All files of the page, by their names below its folder."""
    found = {INDEX: _asset(INDEX, _NO_PAGE)}
    for place in page.__path__:
        for folder, _, names in os.walk(place):
            for name in names:
                whole = os.path.join(folder, name)
                if os.path.splitext(name)[1] in TYPES and os.path.isfile(whole):
                    inside = os.path.relpath(whole, place).replace(os.sep, "/")
                    with open(whole, "rb") as file:
                        found[inside] = _asset(name, file.read())
    return found


def _asset(name: str, data: bytes) -> Asset:
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Asset(data, TYPES[os.path.splitext(name)[1]], etag)
