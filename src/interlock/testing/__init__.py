"""What proves Interlock, shipped so that others can prove their own code with it.

clock.py         FakeClock: a test sets the time
faults.py        FaultyStore: conflicts, lost replies, late arrivals and crashes, by seed or script;
                 kill_at: SIGKILL for a real process at a named commit
testbed.py       one store, one clock, and clients whose operations a test performs step by step
servers/         Redis and etcd started by a test, and a proxy that cuts, delays and loses replies
selftest.py      processes that claim the same tasks: one winner each?
audit.py         the log replayed against the items: lost, doubled, half-done?
conformance/     what every store must do; a store's own test file calls it in about 20 lines
"""
