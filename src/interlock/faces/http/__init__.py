"""``interlock up``: the fleet over HTTP, for pages, programs and models.

server.py      the command: sockets, start, shutdown
app.py         what all requests share, the table of routes, and what is checked before them
routes.py      the endpoints
replies.py     bodies, replies, and waits that end when a caller left
access.py      checks of callers: hosts, origins, tokens, roles
calls.py       an operation that is carried out in the name of an agent
clients.py     the clients of the store that requests act through
operations.py  an operation as an endpoint: from bytes to a request, from an outcome to bytes
events.py      the stream of events: one ring for all readers
overview.py    the first view of a fleet, made of declared operations
assets.py      the files of the page
openapi.py     the description of the API, from the declarations
own_paths.py   the rest of that description
mcp.py         the tools for models: requests, their headers and their sessions
mcp_session.py the session of one model, and the messages that wait for it
a2a.py         the fleet for other frameworks: messages become tasks
a2a_card.py    the cards of the fleet, of an agent, of a skill
a2a_wire.py    requests and tasks as JSON, in both versions of A2A
sessions.py    sessions of callers, by their handles
parts.py       background work, kept running
health.py      whether the store takes a commit
"""
