"""Messages on a store: alert, query, share, stop, mail.

posting.py    sending                    limits.py     how often, how much, how deep
asking.py     questions and answers      serving.py    who is there to answer
reading.py    what waits for an agent    receiver.py   the same as it comes
acking.py     acknowledging              topics.py     subscriptions
tidy.py       what is forgotten          forgetting.py what is read before that
checkup.py    messages in ``health``     why.py        why a question has no answer yet
journal.py    messages in the log of the program
states.py     items as typed state       calls.py      what a client can ask for
"""
