"""``make compare``: Interlock beside the tools that people use, in one run and in turns.

peer.py        what a contender is, and what it notes while it works
claims.py      queues: Interlock, huey, rq, procrastinate, SQL by hand
locks.py       locks: Interlock, redis-py, tooz, filelock, PostgreSQL's advisory locks
messages.py    messages: Interlock, NATS JetStream, Redis streams
processes.py   runs the processes of a contender, all from the same moment on
servers.py     the servers of the contenders, on loopback
sections.py    what is measured: each section in turns
goals.py       what Interlock is to reach, and the rows of ``interlock bench`` that it needs
report.py      the table, the plots, and the page that they are written to
grow.py        ``make grow``: how the cost grows with agents, tasks and subscribers

The contenders of one section take turns, so that each meets the same state of the machine, and the
order changes from turn to turn.  Each has the same number of processes and the same payload, and
is as durable as it can be: what is acknowledged is on the disk, where it keeps anything at all.
Contenders run in an environment of their own (``.venv-compare``), Interlock in its own.
"""
