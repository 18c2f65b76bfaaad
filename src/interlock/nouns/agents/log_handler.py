"""For ``logging``: what a program logs goes to the log of its agent."""

from __future__ import annotations

import logging

from interlock.nouns.agents.log_uploader import Uploader


class UploadHandler(logging.Handler):
    """Hands lines to an uploader; never waits, and fails nobody who logs."""

    def __init__(self, uploader: Uploader, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._uploader = uploader

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; what cannot be taken is told as ``logging`` tells it."""
        try:
            self._uploader.add(self.format(record))
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Have what gathered uploaded as soon as can be, without waiting for it."""
        self._uploader.hurry()
