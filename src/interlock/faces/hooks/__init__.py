"""Hooks of coding agents: a host calls ``interlock hook HOST`` at its events.

hosts.py    the adapter table: files, events, tools, and how each host is answered
event.py    one event of any host, read from its JSON
actions.py  what happens at each event
notices.py  messages and other reports beside the answer to an event
writes.py   changes of files that did not go through the edit tool
primer.py   what an agent has to know, in a few hundred tokens
main.py     the entry point: quick, and closed when something fails
"""
