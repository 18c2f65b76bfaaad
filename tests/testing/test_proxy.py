from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from interlock.testing.servers import until
from interlock.testing.servers.proxy import Proxy, Verdict

HOST = "127.0.0.1"
SILENCE = 0.1


class Echo:
    """Answers every line with the same line, and remembers what arrived."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.closed = 0
        self._connected: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self._connected.append(connected)
                thread = threading.Thread(target=self._serve, args=(connected,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, suppress(OSError):
            while data := connected.recv(65536):
                self.arrived.append(data)
                connected.sendall(data)
        self.closed += 1

    def hang_up(self) -> None:
        for connected in self._connected:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(HOST, echo.port) as made:
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with dial(proxy) as connected:
        assert ask(connected, b"hello") == b"hello"
        yield connected


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), 5)


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(65536)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_it_passes_everything_on_both_ways(proxy: Proxy, echo: Echo) -> None:
    sent = bytes(range(256)) * 16384
    with dial(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        got = b""
        while len(got) < len(sent):
            got += client.recv(65536)
        sender.join()
        assert got == sent
    until(lambda: proxy.counts.open == 0, "the end of the link")
    counts = proxy.counts
    assert (counts.connections, counts.requests, counts.replies) == (1, len(sent), len(sent))


def test_it_passes_on_the_end_of_one_direction(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"last"
        assert client.recv(100) == b""


def test_it_stands_in_for_its_server_in_a_url(proxy: Proxy, echo: Echo) -> None:
    url = f"redis://:secret@127.0.0.1:{echo.port}/0?ns=a"
    assert proxy.through(url) == f"redis://:secret@127.0.0.1:{proxy.port}/0?ns=a"


def test_a_cut_resets_connections_and_refuses_new_ones_until_it_is_healed(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    until(lambda: echo.closed == 1, "the server hears of it")
    proxy.heal()
    with dial(proxy) as again:
        assert ask(again, b"back") == b"back"


def test_a_single_cut_welcomes_new_connections(proxy: Proxy, client: socket.socket) -> None:
    proxy.cut_once()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with dial(proxy) as again:
        assert ask(again, b"back") == b"back"


def test_half_open_connections_swallow_everything_and_stay(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.half_open()
    client.sendall(b"lost")
    with dial(proxy) as later:
        later.sendall(b"lost too")
        assert is_silent(client)
        assert is_silent(later)
        assert echo.arrived == [b"hello"]
        assert echo.closed == 0
        proxy.heal()
        for stale in (client, later):
            with pytest.raises(ConnectionResetError):
                stale.recv(1)
    with dial(proxy) as again:
        assert ask(again, b"back") == b"back"


def test_a_half_open_connection_that_lost_nothing_goes_on(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.half_open()
    proxy.heal()
    assert ask(client, b"unharmed") == b"unharmed"


def test_nobody_hears_of_a_death_behind_a_half_open_connection(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    with dial(proxy) as leaving:
        assert ask(leaving, b"me too") == b"me too"
        proxy.half_open()
    assert is_silent(client)
    assert echo.closed == 0
    echo.hang_up()
    until(lambda: echo.closed == 2, "the server left")
    assert is_silent(client)


@pytest.mark.parametrize("direction", ["both", "requests", "replies"])
def test_a_delay_lets_things_arrive_later(
    proxy: Proxy, echo: Echo, client: socket.socket, direction: str
) -> None:
    proxy.delay(0.1, direction)  # type: ignore[arg-type]
    began = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    took = time.monotonic() - began
    assert took >= (0.2 if direction == "both" else 0.1)
    proxy.delay(60)
    proxy.delay(0)
    assert ask(client, b"fast") == b"fast"


def test_a_dropped_reply_was_a_request_that_arrived(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.drop_replies(2)
    with dial(proxy) as other:
        for struck, word in ((client, b"one"), (other, b"two")):
            with pytest.raises(ConnectionResetError):
                ask(struck, word)
    assert echo.arrived == [b"hello", b"one", b"two"]
    with dial(proxy) as again:
        assert ask(again, b"three") == b"three"


def test_dropping_replies_can_spare_later_connections(proxy: Proxy, client: socket.socket) -> None:
    proxy.drop_replies(1, connections="open")
    with dial(proxy) as other:
        assert ask(other, b"spared") == b"spared"
    with pytest.raises(ConnectionResetError):
        ask(client, b"struck")


def test_a_held_request_arrives_after_its_client_has_gone(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.hold_requests()
    client.sendall(b"late")
    until(lambda: proxy.counts.held_requests == 4, "the request is held")
    client.close()
    assert echo.arrived == [b"hello"]
    proxy.release_requests()
    until(lambda: echo.arrived == [b"hello", b"late"], "the late arrival")
    until(lambda: echo.closed == 1, "the end of the link")


def test_a_held_request_outlives_a_cut(proxy: Proxy, echo: Echo, client: socket.socket) -> None:
    proxy.hold_requests()
    client.sendall(b"late")
    until(lambda: proxy.counts.held_requests == 4, "the request is held")
    proxy.cut_once()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert echo.arrived == [b"hello"]
    proxy.release_requests()
    until(lambda: echo.arrived == [b"hello", b"late"], "the late arrival")
    until(lambda: echo.closed == 1, "the end of the link")


def test_held_replies_come_when_they_are_released(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    proxy.hold_replies()
    client.sendall(b"patience")
    until(lambda: proxy.counts.held_replies == 8, "the reply is held")
    assert is_silent(client)
    proxy.release_replies()
    assert client.recv(100) == b"patience"


def test_a_callback_strikes_single_requests_by_what_they_contain(proxy: Proxy, echo: Echo) -> None:
    verdicts: dict[bytes, Verdict] = {b"a": "cut", b"b": "drop reply", b"c": "hold"}
    proxy.on_request(verdicts.get)
    for word in (b"a", b"b"):
        with dial(proxy) as client, pytest.raises(ConnectionResetError):
            ask(client, word)
    assert echo.arrived == [b"b"]
    with dial(proxy) as client, dial(proxy) as other:
        client.sendall(b"c")
        until(lambda: proxy.counts.held_requests == 1, "the request is held")
        assert ask(other, b"d") == b"d"
        proxy.release_requests()
        assert client.recv(1) == b"c"
    proxy.on_request(None)
    with dial(proxy) as client:
        assert ask(client, b"a") == b"a"


def test_a_callback_may_turn_the_proxy_itself(proxy: Proxy, client: socket.socket) -> None:
    def cut(data: bytes) -> Verdict:
        proxy.cut()
        return None

    proxy.on_request(cut)
    with pytest.raises(ConnectionResetError):
        ask(client, b"bye")
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)


def test_what_a_callback_raises_is_not_lost(echo: Echo) -> None:
    def fail(data: bytes) -> Verdict:
        raise LookupError

    proxy = Proxy(HOST, echo.port)
    proxy.on_request(fail)
    with dial(proxy) as client, pytest.raises(ConnectionResetError):
        ask(client, b"a")
    with pytest.raises(LookupError):
        proxy.close()


def test_a_server_that_is_not_there_is_a_reset() -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        with (
            Proxy(HOST, nobody.getsockname()[1]) as proxy,
            pytest.raises((ConnectionResetError, BrokenPipeError)),
            dial(proxy) as client,
        ):
            ask(client, b"anybody?")


def test_it_leaves_no_thread_and_no_port_behind(echo: Echo) -> None:
    before = threading.active_count()
    proxy = Proxy(HOST, echo.port)
    with dial(proxy) as client:
        ask(client, b"a")
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    with pytest.raises(ValueError, match="closed"):
        proxy.cut()
    until(lambda: threading.active_count() <= before + 1, "only the echo's own thread")
    assert "proxy-" not in " ".join(thread.name for thread in threading.enumerate())
