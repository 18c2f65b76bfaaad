"""Processes that this program starts, and all that they start in turn.

``tree`` finds the descendants of a process and ends them.  ``supervised`` runs a command below a
helper process, ``supervisor``, which ends the command and its whole tree at a limit.  ``search``
is another helper: it looks for a regular expression, and ends itself after a second.

A helper starts quickly because it imports the standard library and its neighbours here, nothing
else: they import each other by relative names, and none of them imports the rest of the package.
"""
