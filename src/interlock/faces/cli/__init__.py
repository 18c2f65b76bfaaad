"""The command line, derived from the declared operations.

main.py     the entry point
command.py  one command, from its words to its exit status
parse.py    words to a typed request; argparse would take an eighth of the time of a command
common.py   the options of every command
help.py     the texts of ``--help``, and suggestions for unknown commands
hints.py    suggestions for words that a command cannot take
connect.py  the session in which a command acts
child.py    a program that must not outlive its grant
run.py init.py doctor.py agent.py message.py record.py task.py shows.py   single commands
"""
