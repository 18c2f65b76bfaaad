"""Real servers for tests: Redis, etcd and git remotes on loopback, and a proxy for the network.

process.py       one server process, its ports, and the guard that ends it when the test run dies
proxy.py         Proxy: a network that cuts, delays, holds back and loses replies
redis.py         RedisServer
etcd.py          EtcdServer and EtcdCluster
git.py           SshServer and GitHttpServer

    with RedisServer(tmp_path) as redis:
        fleet = interlock.connect(redis.url("tests"), agent="ada")
        redis.kill()        # kill -9
        redis.restart()     # the same port, the same data

The binaries are on PATH, or ``make test`` of a clone unpacked them.  Nothing beyond
the standard library is needed, and no test framework.
"""

from __future__ import annotations

from interlock.testing.servers.etcd import EtcdCluster, EtcdServer
from interlock.testing.servers.git import GitHttpServer, SshServer
from interlock.testing.servers.process import Server, ServerTrouble, Tls, until
from interlock.testing.servers.redis import RedisError, RedisServer

__all__ = [
    "EtcdCluster",
    "EtcdServer",
    "GitHttpServer",
    "RedisError",
    "RedisServer",
    "Server",
    "ServerTrouble",
    "SshServer",
    "Tls",
    "until",
]
