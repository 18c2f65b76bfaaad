"""What proves Interlock, shipped so that others can prove theirs with it.

clock.py         FakeClock: time moved by hand
faults.py        FaultyStore: conflicts, lost replies, late arrivals and crashes, by seed or script
hand.py          operations driven by hand, one step at a time, in any order
stage.py         one store, one clock, and clients driven by hand
servers/         Redis and etcd started by a test: killed, frozen, restarted, as a cluster
proxy.py         Proxy: a network that cuts, delays, holds back and loses replies
race.py          processes that claim the same tasks: one winner each?
audit.py         the log replayed against the items: lost, doubled, half-done?
conformance/     what every store must do; a store's own test file calls it in about 20 lines
"""
