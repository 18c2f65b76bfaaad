"""A kept process that reads objects answers the question that was asked, or is replaced."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from tests.stores.git.conftest import Remote

from interlock.stores.git.address import parse
from interlock.stores.git.reader import ObjectReader
from interlock.stores.git.repository import Repository

OTHER = "1" * 40


@pytest.fixture
def repository(remote: Remote) -> Iterator[Repository]:
    found = Repository(str(remote.path), parse(remote.url))
    yield found
    found.close()


@pytest.fixture
def reader(remote: Remote) -> Iterator[ObjectReader]:
    found = ObjectReader(["git", "-C", str(remote.path), "cat-file", "--batch"], os.environ)
    yield found
    found.close()


def test_a_read_after_an_interrupted_one_returns_its_own_object(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (repository.write("blob", text) for text in (b"one", b"two"))
    assert repository.blob(one) == b"one"
    with monkeypatch.context() as patch:
        patch.setattr(ObjectReader, "_more", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            repository.blob(one)
    assert repository.commit_of("refs/heads/none") == ""
    assert repository.blob(two) == b"two"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_reader_that_still_answers_another_question_is_replaced(repository: Repository) -> None:
    one, two = (repository.write("blob", text) for text in (b"one", b"two"))
    for left in (one, OTHER):
        assert repository.blob(one) == b"one"
        reader = repository._reader
        assert reader is not None
        reader._send(f"{left}\n".encode(), None)
        assert repository.blob(two) == b"two"
        assert repository._reader is not reader


def small_pipe(reader: ObjectReader) -> None:
    if sys.platform == "linux":
        for pipe in (reader._to, reader._from):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)


def test_many_names_are_asked_for_through_small_pipes(
    repository: Repository, reader: ObjectReader
) -> None:
    small_pipe(reader)
    texts = [b"%d" % number * 3000 for number in range(300)]
    names = [repository.write("blob", text) for text in texts]
    names[200:200] = ["refs/" + "n" * 3000, OTHER]
    found = reader.ask(names, limit=60.0)
    assert found[200:202] == [None, None]
    assert [each.data for each in found if each] == texts


def test_a_reader_that_takes_no_more_questions_is_late(reader: ObjectReader) -> None:
    small_pipe(reader)
    os.kill(reader._process.pid, signal.SIGSTOP)
    reader._send(b"x" * 4096, None)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        reader.ask([OTHER], limit=0.1)
    assert time.monotonic() - began < 30.0


def test_a_long_name_is_sent_whole(reader: ObjectReader) -> None:
    with pytest.raises(ValueError, match="without an end"):  # git repeats the name
        reader.ask(["refs/" + "n" * 100_000], limit=60.0)
