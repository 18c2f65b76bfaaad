"""Messages on a store: alert, query, share, stop, mail.

posting.py    sending                    limits.py     how often, how much, how deep
asking.py     questions and answers      serving.py    who is there to answer
reading.py    what waits for an agent    receiver.py   the same as it comes
acking.py     acknowledging              topics.py     subscriptions
looking.py    lists, searches, a wait    pausing.py    who may not send for now
states.py     items as typed state       calls.py      what a client can ask for
"""
