"""Messages on a store: alert, query, share, stop, mail.

posting.py    sending                    limits.py     how often, how much, how deep
asking.py     questions and answers      serving.py    who is there to answer
reading.py    what waits for an agent    receiver.py   the same as it comes
line.py       what is to be given out    reception.py  one by one, for a loop
duty.py       saying that we are there   inhand.py     a message in our hands
acking.py     acknowledging              cursors.py    how far topics are acknowledged
topics.py     subscriptions
files.py      files that are shared      looking.py    lists and searches
pausing.py    who may not send for now
tidy.py       what is forgotten          forgetting.py what is read before that
checkup.py    messages in ``health``     why.py        why a question has no answer yet
journal.py    messages in the log of the program
states.py     items as typed state
calls.py      what a client can ask for: sending.py, questions.py, on common.py
"""
