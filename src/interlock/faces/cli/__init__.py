"""The command line, derived from the declared operations.

main.py     the entry point
warm.py     hands a command over to a process that has imported everything (warm_server.py)
command.py  one command, from its words to its exit status
parse.py    words to a typed request; argparse would take an eighth of the time of a command
help.py     the texts of ``--help``, and suggestions for unknown commands
hints.py    suggestions for words that a command cannot take, and notes for a refused caller
connect.py  the session in which a command acts
child.py    a program that must not outlive its grant
run.py agent.py message.py streams.py fleet.py   commands that do more than print an outcome
"""
