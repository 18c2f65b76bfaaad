"""Redis and Valkey behind the waist.  docs/decisions/redis.md tells why it is as it is.

store.py                the store: one script for a commit, one for a read
*.lua, scripts.py       what runs inside the server, atomically
packing.py              requests and answers as the scripts take and give them
connection.py, tls.py   one connection
wire.py                 all of them: a pool for callers that block, and the way to a new one
stream.py, link.py      connections of event loops; the pipelined one
watch.py                the feed: bells while a connection lives, the log for what was missed
seat.py, bells.py       where a watch listens: blocking, and in an event loop
grade.py                what a server is, and whether it will do
replies.py              what an error of the server means
examine.py              facts and findings for people
"""

from __future__ import annotations

from interlock.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
