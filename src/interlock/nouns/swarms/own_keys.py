"""The keys that sign for our swarm: where they are, and how one takes over from another.

**Rotation** starts with the files (``key_files.rotate``); the next publishing finds that the key of
the same name is another one and takes it over, in one commit at home.  So a crash in between, or a
home store that was away, repairs itself.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from interlock.core import keys, signing
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.core.signing import Signer
from interlock.core.validate import quote
from interlock.errors import InterlockError, NotAllowed
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.envelope import EnvelopeRefused, TrustedKey, open_envelope
from interlock.nouns.swarms.head import ListedKey, RegistryHead
from interlock.nouns.swarms.swarm import OwnSwarm, OwnSwarmChange, decode_own
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Item, Snapshot


def own_swarm() -> Op[OwnSwarm | None]:
    """Our home as a swarm; None if it is not registered."""
    snapshot: Snapshot = yield Read(keys.OWN_SWARM)
    item = snapshot[keys.OWN_SWARM]
    return None if item is None else decode_own(item)


# The keys that sign for us.


def no_key_left(own: OwnSwarm) -> str:
    """What to do when the last key of our swarm is revoked or has ended."""
    return (
        f"{foreign(own.name)} has no key any more; make one: interlock key new NAME; register with"
        " it:"
        f" interlock swarm register {quote(own.name)} --bus URL --key NAME; and have the peers pin"
        " it"
    )


def own_signers(own: OwnSwarm, now: float) -> tuple[Signer, ...]:
    """The signers of all our keys, in the order of the entry; NotAllowed if one is not here.

    The current key is found by its name; every key is also found by its fingerprint, in a file of
    this user or in an ssh-agent.  It reads files, so it belongs into a thread.
    """
    listed = registry.valid_keys(own.keys, now)
    if not listed:
        raise NotAllowed(no_key_left(own))
    return tuple([signer_of(own, key.fingerprint) for key in listed])


def current_signer(own: OwnSwarm, now: float) -> Signer:
    """The signer of our current key: for messages."""
    listed = registry.valid_keys(own.keys, now)
    if not listed:
        own_signers(own, now)
    return signer_of(own, listed[0].fingerprint)


def signer_of(own: OwnSwarm, fingerprint: str, mine: Signer | None = None) -> Signer:
    """The signer of a key of our swarm, or of its agents; NotAllowed if it is not on this host.

    ``mine`` is the key of this client, which may be a file elsewhere.
    """
    from interlock.nouns.swarms import key_files

    refusal = ""
    try:
        if mine is not None and mine.fingerprint == fingerprint:
            return mine
        found = key_files.signer(own.key)
        if found.fingerprint == fingerprint:
            return found
        refusal = (
            f"{foreign(own.key)} is {found.fingerprint} here; restore the key, if it was replaced"
        )
    except NotAllowed as error:
        refusal = str(error)  # the key is here, and cannot be used
    except InterlockError:
        pass  # it may have another name on this host
    for file in key_files.listed():
        if file.fingerprint == fingerprint:
            return key_files.signer(file.name)
    try:
        return key_files.signer(fingerprint)
    except InterlockError as error:
        in_agent = own.key.startswith(signing.FINGERPRINT_MARK)
        why = refusal or (
            str(error) if in_agent else "it is not on this host; run this where it is"
        )
        raise NotAllowed(
            f"the key {fingerprint} of {own.name} cannot be used: {why}; if it is lost, register"
            " with another key and revoke it"
        ) from None


def _replaced(own: OwnSwarm) -> Signer | None:
    """The key that has taken the place of our current one, under the same name; None without.

    Both keys must be here: the old one has to vouch for the new one, and a file that another key
    has overwritten is no rotation.
    """
    from interlock.nouns.swarms import key_files

    if not own.keys or own.key.startswith(signing.FINGERPRINT_MARK):
        return None
    try:
        found = key_files.signer(own.key)
        if found.fingerprint in [key.fingerprint for key in own.keys]:
            return None
        signer_of(own, own.fingerprint)
    except InterlockError:
        return None  # the key may be on another host
    return found


def listed_key(signer: Signer) -> ListedKey:
    """A key as a registry entry lists it."""
    return ListedKey(public=signing.to_base64(signer.public_key))


def adopt_rotation(runner: Runner, own: OwnSwarm, actor: Actor) -> Op[OwnSwarm]:
    """Take over a key that has replaced the current one in its file."""
    new: Signer | None = yield InThread(partial(_replaced, own))
    if new is None:
        return own
    fresh = listed_key(new)

    def deciding() -> DecideOp[OwnSwarmChange]:
        item = (yield (keys.OWN_SWARM,))[keys.OWN_SWARM]
        before = own if item is None else decode_own(item)
        if item is None or fresh.public in [key.public for key in before.keys]:
            return Decision(outcome=OwnSwarmChange(own=before))
        listed = registry.rotated(before.keys, fresh, before.name, runner.clock.wall())
        return Decision(
            outcome=OwnSwarmChange(own=(after := replace(before, keys=listed))),
            verb="key.rotate",
            thing=f"swarm/{before.name}",
            puts=(Write(keys.OWN_SWARM, after),),
            events=(Event("swarm:key_rotated", actor.agent),),
            reason=fresh.fingerprint,
        )

    return (yield from runner.change(deciding, actor)).outcome.own


def named_signer(key: str) -> Signer:
    """The signer that a caller names: a key, a path, or the fingerprint of an agent's key."""
    from interlock.nouns.swarms import key_files

    return key_files.signer(key)


def is_revoked(swarm: str, fingerprint: str) -> Op[bool]:
    """Whether our swarm has revoked this key."""
    key = keys.revocation(swarm, fingerprint)
    snapshot: Snapshot = yield Read(key)
    return snapshot[key] is not None


def verified_own(item: Item | None, own: OwnSwarm, now: float) -> RegistryHead | None:
    """Our entry on the bus, also an expired one; None if none of our keys signed it."""
    if item is None:
        return None
    trusted = {
        key.fingerprint: TrustedKey(
            public_key=signing.from_base64(key.public) or b"", swarm=own.name
        )
        for key in own.keys
    }
    found = open_envelope(item.value, RegistryHead, trusted.get, bus=own.bus_id, now=now)
    if isinstance(found, EnvelopeRefused):
        late = found.reason in ("expired", "future") and isinstance(found.head, RegistryHead)
        return found.head if late and isinstance(found.head, RegistryHead) else None
    return found.head
