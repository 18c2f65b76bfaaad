"""Redis and Valkey behind the waist; docs/decisions/redis.md gives the reasons.

store.py              the store: one script for a commit, one for a read
*.lua, scripts.py     the scripts that run inside the server, their requests and their answers
transport.py          connections of blocking callers: the pool, connecting and reconnecting
tls.py                TLS for a connection
async_connections.py  connections of event loops: one that is pipelined, one that listens
watch.py              the feed of changes: pub/sub, and the log after a gap
server.py             what a server is, whether it can keep the promises, findings for people
errors.py             what an error of the server means
"""

from interlock.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
