"""What the log of a program is told while somebody listens and the store does not answer."""

from __future__ import annotations

from interlock.errors import StoreTrouble


class Complaints:
    """Says what keeps a listener from hearing, once until it hears again."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._said = ""

    def tell(self, trouble: StoreTrouble) -> None:
        """It cannot hear for now."""
        if not self._said:
            import logging

            self._said = str(trouble)
            log = logging.getLogger("interlock")
            log.warning("%s goes on when this is over: %s", self._listener, trouble)

    def over(self) -> None:
        """It hears again."""
        self._said = ""
