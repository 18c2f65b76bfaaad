"""``interlock top``: the fleet in a terminal, live, with what needs a person first.

screen_data.py   rows, views and actions as data
views/           what each view shows, and which declared operations it offers
spans.py         who held what and when, from the record, for the timeline
reader.py        the threads that read the store and act, so that the screen waits for neither
app.py           the screen: tabs, table, details, log, status bar
bars.py          the lines around the table
dialogs.py       the questions that the screen asks before it acts
start.py         the command

Only ``app.py``, ``bars.py`` and ``dialogs.py`` import textual, which is the extra ``[tui]``.
"""
