"""etcd: a server or a cluster of them behind the waist.

store.py      the store: opening, reading, telling
commits.py    one transaction each, and renewals that write nothing
leases.py     what liveness keys hang on
watch.py      one stream for all watches, and the thread that reads it
shape.py      keys and values as they stand in etcd
room.py       nothing new in a database that is nearly full
wire.py       channels: blocking and async, one endpoint at a time
silence.py    gRPC, kept from printing
trouble.py    what gRPC's errors mean
probe.py      why an endpoint cannot be used
examine.py    what ``doctor`` looks at
rpc.proto     the messages; rpc_pb2.py is made of it
"""

from __future__ import annotations

from interlock.stores.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
