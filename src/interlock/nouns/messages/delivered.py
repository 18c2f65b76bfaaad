"""A message in the hands of whoever got it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interlock.errors import BadInput
from interlock.nouns.messages.message import File, Kind, Received
from interlock.nouns.messages.receive_loop import Reception


class MessageInHand:
    """What a message says, the same for blocking and for async receivers."""

    def __init__(self, received: Received, reception: Reception) -> None:
        self.received = received
        self._reception = reception

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id} from {self.sender}>"

    @property
    def id(self) -> str:
        """Its id: the same each time that it is delivered."""
        return self.received.id

    @property
    def kind(self) -> Kind:
        """What it is: an alert, a query, an answer, something shared, a stop, mail, or missed."""
        return self.received.kind

    @property
    def sender(self) -> str:
        """The agent that sent it."""
        return self.received.sender

    @property
    def at(self) -> float:
        """When it was sent, by the clock of its sender."""
        return self.received.at

    @property
    def seq(self) -> int:
        """Its place in the order: it grows with each message, whoever sent it."""
        return self.received.seq

    @property
    def to(self) -> tuple[str, ...]:
        """Whom it is to."""
        return self.received.to

    @property
    def type(self) -> str:
        """The type of an alert, or of what is shared."""
        return self.received.type

    @property
    def subject(self) -> str:
        """The subject of a mail."""
        return self.received.subject

    @property
    def thread(self) -> str:
        """The thread that a mail belongs to."""
        return self.received.thread

    @property
    def reply_to(self) -> str:
        """The mail, or the query, that it answers."""
        return self.received.reply_to

    @property
    def urgent(self) -> bool:
        """Whether it is to be read first."""
        return self.received.urgent

    @property
    def data(self) -> Any:  # noqa: ANN401 - whatever JSON can say
        """Its body: of a query, the question."""
        return self.received.data

    @property
    def attempt(self) -> int:
        """How often it was given out: more than once if a receiver died with it, or was too slow.

        It may be one too many if a receiver of this name died before the message came.
        """
        return self.received.attempt

    @property
    def expires_in(self) -> float | None:
        """How long a question could be answered when it was given out, in seconds."""
        return self.received.expires_in

    def _file(self) -> File:
        if self.received.file is None:
            raise BadInput(f"no file comes with {self.id}; look at message.data")
        return self.received.file


def ids_of(messages: Iterable[MessageInHand | str]) -> list[str]:
    """The ids of messages, each given as it came or by its id."""
    found = [each.id if isinstance(each, MessageInHand) else each for each in messages]
    if not all(isinstance(each, str) for each in found):
        raise BadInput("ack takes messages one by one; for several write ack(*messages)")
    return found
