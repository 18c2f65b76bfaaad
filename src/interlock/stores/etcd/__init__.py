"""etcd behind the waist: a server or a cluster; docs/decisions/etcd.md gives the reasons.

store.py      the store: opening, reading, maintenance
commits.py    one transaction each, and renewals that write nothing
leases.py     the leases of liveness keys and of signals
watch.py      one stream for all watches, and one watch of etcd for each scope
encoding.py   keys and values as they are in etcd
transport.py  channels: blocking and async, one endpoint at a time
errors.py     what gRPC's errors mean
server.py     what a server says of itself, room for new data, findings for people
rpc_pb2.py    generated from rpc.proto
"""

from interlock.stores.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
