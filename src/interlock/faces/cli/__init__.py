"""The command line, derived from the table of operations.

main.py     the entry point
command.py  one command, from its words to its exit status
parse.py    words to a typed request; our own, because argparse would be an eighth of a command
common.py   what every command takes
help.py     what ``--help`` says, and which command was probably meant
hints.py    what was probably meant with a word that a command cannot take
connect.py  under which session a command acts
child.py    a program that must not outlive its grant
run.py init.py doctor.py agent.py message.py record.py task.py shows.py   what is special to one
            command
"""
