"""``interlock up``: the fleet over HTTP, for pages, programs and models.

server.py      the command: sockets, start, shutdown
app.py         the routes, and the order in which a request is checked
access.py      checks of callers: hosts, origins, tokens, roles
clients.py     the clients of the store that requests act through
operations.py  an operation as an endpoint: from bytes to a request, from an outcome to bytes
events.py      the stream of events: one ring for all readers
overview.py    the first view of a fleet, made of declared operations
assets.py      the files of the page
openapi.py     the description of the API
mcp.py         the tools for models
sessions.py    sessions of callers, by their handles
parts.py       background work, kept running
health.py      whether the store takes a commit
"""
