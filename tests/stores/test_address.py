from __future__ import annotations

import pytest

from interlock.errors import BadInput, InterlockError, StoreUnsuitable
from interlock.stores import file_of, is_network, open_store
from interlock.stores.address import Address, parse


def test_a_redis_url_has_host_port_database_and_namespace() -> None:
    assert parse("redis://10.0.0.1:7000/3?ns=team") == Address(
        engine="redis",
        hosts=(("10.0.0.1", 7000),),
        namespace="team",
        db=3,
        options={"ns": "team"},
        shown="redis://10.0.0.1:7000/3?ns=team",
    )


def test_what_is_left_out_has_the_engines_own_defaults() -> None:
    redis, etcd = parse("redis://localhost"), parse("etcd://localhost")
    assert (redis.hosts, redis.db, redis.namespace) == ((("localhost", 6379),), 0, "interlock")
    assert (etcd.hosts, etcd.namespace) == ((("localhost", 2379),), "interlock")


def test_an_etcd_url_names_several_hosts_and_a_namespace() -> None:
    found = parse("etcd://a:1,b,[::1]:3/team/builds")
    assert found.hosts == (("a", 1), ("b", 2379), ("::1", 3))
    assert found.namespace == "team/builds"


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "etcds"])
def test_the_scheme_says_whether_tls_is_spoken(scheme: str) -> None:
    assert parse(f"{scheme}://h?ca=/etc/ca.pem").tls
    assert not parse("redis://h").tls


def test_a_unix_socket_is_a_path() -> None:
    found = parse("redis+unix:///run/my%20redis.sock?db=2&ns=a")
    assert (found.socket, found.db, found.hosts) == ("/run/my redis.sock", 2, ())


def test_user_and_password_may_hold_any_character_and_are_never_shown() -> None:
    for url in ("redis://u%40:s%2Fe%3Acret@h/1", "etcd://u%40:s%2Fe%3Acret@h/ns"):
        found = parse(url)
        assert (found.user, found.password) == ("u@", "s/e:cret")
        assert "cret" not in found.shown
    assert parse("redis://:secret@h").password == "secret"


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis://", "names no host"),
        ("etcd://a:1,,b:2/x", "names no host"),
        ("redis://h:port", "no number from 1"),
        ("redis://h:99999", "no number from 1"),
        ("redis://h/name", "number of a database"),
        ("redis://h?namespace=x", "none of: ns"),
        ("etcd://h/ns?ns=x", "none of: quota"),
        ("redis+unix://run/redis.sock", "is not like redis"),
        ("etcds://h?cert=/c.pem", "cert= and key= together"),
        ("redis://user@h", "user without a password"),
        ("rediss://h?key=/k.pem", "cert= and key= together"),
    ],
)
def test_a_slip_in_a_url_is_bad_input_in_one_line(url: str, wrong: str) -> None:
    with pytest.raises(BadInput, match=wrong) as raised:
        parse(url)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "namespace", ["", "a b", "a{b}", "ü", "a//b", "/a", "a/", "x" * 101, "a\nb", "a*"]
)
def test_a_namespace_with_strange_characters_is_unsuitable(namespace: str) -> None:
    from urllib.parse import quote

    with pytest.raises(StoreUnsuitable, match="namespace"):
        parse(f"redis://h?ns={quote(namespace)}")
    if namespace:
        with pytest.raises(StoreUnsuitable, match="namespace"):
            parse(f"etcd://h/{quote(namespace, safe='/')}")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:se/cret@host/0",
        "redis://:se?cret@host",
        "redis://u:12?cret@host",
        "redis://user:secret",
        "etcd://user:secret",
        "etcd://u:se/cret@host/ns",
    ],
)
def test_a_password_in_a_malformed_url_is_not_repeated(url: str) -> None:
    with pytest.raises(InterlockError) as raised:
        parse(url)
    assert "cret" not in str(raised.value)


def test_a_scheme_without_slashes_is_no_file() -> None:
    with pytest.raises(BadInput, match="redis://localhost"):
        open_store("redis:localhost")


@pytest.mark.parametrize("url", ["git@github.com:shop/fleet.git", "build@host:/srv/fleet.git"])
def test_a_git_remote_as_git_writes_it_is_no_file(url: str) -> None:
    with pytest.raises(BadInput, match=r"looks like a git remote; write git\+ssh://"):
        open_store(url)
    with pytest.raises(BadInput, match=r"a branch of a git remote is git\+https://"):
        open_store("https://github.com/shop/fleet.git")


@pytest.mark.parametrize("url", ["localhost:6379", "redis.example:6379/0", "127.0.0.1:2379"])
def test_a_server_without_a_scheme_is_no_file(url: str) -> None:
    with pytest.raises(BadInput, match="looks like a server"):
        open_store(url)


def test_only_known_schemes_are_networks() -> None:
    assert is_network("redis://h")
    assert is_network("etcds://h")
    assert is_network("REDIS://h")
    assert parse("REDIS://h").engine == "redis"
    assert not is_network("redis")
    assert not is_network("/var/redis://x")
    assert file_of("redis://h") is None


def test_an_unknown_scheme_names_those_that_there_are() -> None:
    with pytest.raises(InterlockError, match="redis://host, etcd://host"):
        open_store("mysql://h")
