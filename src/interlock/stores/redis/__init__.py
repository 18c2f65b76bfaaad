"""Redis and Valkey behind the waist.  docs/decisions/redis.md tells why it is as it is.

store.py     the store: one script for a commit, one for a read
*.lua        what runs inside the server, atomically
packing.py   requests and answers as the scripts take and give them
wire.py      plain connections for callers that may block, and the way to a new one
link.py      connections of event loops: pipelined, and one that listens
watch.py     the feed: bells, and the log for whatever was missed
grade.py     what a server is, and whether it will do
replies.py   what an error of the server means
examine.py   facts and findings for people
"""

from __future__ import annotations

from interlock.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
