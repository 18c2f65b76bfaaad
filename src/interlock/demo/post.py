"""What the record says of the messages: who sent, received, asked and answered what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from interlock.core.log import Line


class Letter(Struct, frozen=True):
    """A message, and who sent it."""

    id: str
    sender: str


@dataclass(slots=True)
class Post:
    """The messages of a run."""

    alerts: list[Letter] = field(default_factory=list)
    stops: list[Letter] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    """Who asked each question that somebody answered, and who did, in order."""
    answered: dict[str, str] = field(default_factory=dict)
    received: dict[str, set[str]] = field(default_factory=dict)
    """Who acknowledged each message."""

    def read(self, lines: Iterable[Line]) -> Post:
        """Know these entries, too."""
        for line in lines:
            if line.verb == "query.ask":
                self.asked[line.thing] = line.agent
            elif line.verb == "query.reply":
                self.answered[line.thing] = line.agent
            for event in line.events:
                self._note(line.verb, event.name, Letter(event.thing, event.agent))
        return self

    def readers(self, letters: Iterable[Letter]) -> set[str]:
        """All who acknowledged one of these."""
        return {reader for letter in letters for reader in self.received.get(letter.id, ())}

    def _note(self, verb: str, event: str, letter: Letter) -> None:
        if event == "message:received":
            self.received.setdefault(letter.id, set()).add(letter.sender)
        elif event == "message:sent" and verb == "message.alert":
            self.alerts.append(letter)
        elif event == "message:sent" and verb == "message.stop":
            self.stops.append(letter)
