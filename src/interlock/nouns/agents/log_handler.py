"""For ``logging``: what a program logs goes to the log of its agent."""

from __future__ import annotations

import logging

from interlock.nouns.agents.log_uploader import Uploader


class UploadHandler(logging.Handler):
    """Hands lines to an uploader; it never blocks and never raises into the logging code."""

    def __init__(self, uploader: Uploader, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._uploader = uploader

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; an error is reported as ``logging`` reports errors of handlers."""
        try:
            self._uploader.add(self.format(record))
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Start the upload of the gathered lines, without waiting for it."""
        self._uploader.hurry()
