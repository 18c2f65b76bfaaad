"""Keys: files of this user, and the keys of our swarm among them.

Without a store a key is only a file.  ``rotate`` also takes the new key over for our swarm, if that
signs with the old one; a swarm whose store is not here does it with its next pass.
"""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import replace

from interlock.client_context import Context
from interlock.errors import BusTrouble, NotAllowed
from interlock.nouns.swarms import key_files, registry
from interlock.nouns.swarms.key_files import KeyFile
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.nouns.swarms.publish_service import publish
from interlock.nouns.swarms.results import KeyList, KeyMade, KeyRotated, KeyView
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.runtime.identity import Actor
from interlock.steps import InThread, Op


def create(name: str) -> KeyMade:
    """Make a key."""
    made = key_files.create(name)
    return KeyMade(
        key=made.name,
        fingerprint=made.fingerprint,
        public_key=made.public_key,
        path=made.path,
    )


def list_keys() -> KeyList:
    """The keys of this user."""
    now = time.time()
    return KeyList(
        keys=tuple([_view(file, now) for file in key_files.listed()]), folder=key_files.place()
    )


def _view(file: KeyFile, now: float) -> KeyView:
    return KeyView(
        key=file.name,
        path=file.path,
        age=round(file.age(now), 3),
        fingerprint=file.fingerprint,
        public_key=file.public_key,
        retired=file.retired,
        overdue=file.overdue(now),
        problem=file.problem,
    )


def rotate_file(name: str, now: float | None = None) -> KeyRotated:
    """Replace the file of a key; its swarm takes the new key over later."""
    new, old = key_files.rotate(name, time.time() if now is None else now)
    return KeyRotated(
        key=new.name,
        fingerprint=new.fingerprint,
        old=old.name,
        old_fingerprint=old.fingerprint,
    )


def rotate(context: Context, actor: Actor, name: str) -> Op[KeyRotated]:
    """Replace a key; the next registry entry of our swarm is signed by both."""
    own = yield from own_swarm()
    now = context.runner.clock.wall()
    if own is not None and own.key == name:
        registry.require_room(own.keys, own.name, now)
    rotated: KeyRotated = yield InThread(partial(rotate_file, name, now))
    if own is None or rotated.old_fingerprint not in [key.fingerprint for key in own.keys]:
        return rotated
    version, trouble = None, ""
    try:
        version = (yield from publish(context, own, actor, urgent=True)).version
    except (BusTrouble, NotAllowed) as error:
        trouble = str(error)
    return _with_swarm((yield from own_swarm()) or own, rotated, version, trouble)


def _with_swarm(
    own: OwnSwarm, rotated: KeyRotated, version: int | None, trouble: str
) -> KeyRotated:
    ends = [key.until / 1000 for key in own.keys if key.fingerprint == rotated.old_fingerprint]
    return replace(
        rotated,
        swarm=own.name,
        version=version,
        until=ends[0] if ends else None,
        trouble=trouble,
    )
