"""Verifies, exports and anchors the record.

It is imported only for these: reading the log does not need its imports.
"""

from __future__ import annotations

from collections.abc import Sequence

from interlock.check_record import ExpectedMark
from interlock.drivers import InThread, Op
from interlock.errors import BadInput, StoreDamaged, StoreUnsuitable
from interlock.nouns.record.anchors import AnchorLine, AnchorPlace, expected_marks
from interlock.nouns.record.anchors import anchor_place as found_place
from interlock.nouns.record.export import WriteLines, export
from interlock.nouns.record.outcomes import Anchored, Exported, Verified
from interlock.nouns.record.verify import verify, verify_and_roll
from interlock.runtime.runner import Runner


class Proofs:
    """Verify, export and anchor, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._clock = runner.clock
        self._capabilities = runner.capabilities

    def verify(self, anchors: Sequence[str], against: str) -> Op[Verified]:
        """Read the whole record, and judge it."""
        marks: list[ExpectedMark] = []
        for place in map(found_place, anchors):
            found = yield InThread(place.read)
            if not found:
                raise BadInput(
                    f"{place.name} has no anchor; make one: interlock record anchor {place.name}"
                )
            marks.extend(expected_marks(place, found))
        return (yield from verify(self._capabilities, marks, against))

    def export(self, to: str | WriteLines, after: int) -> Op[Exported]:
        """Write the record to a file, so that others can check it."""
        return export(self._capabilities, to, after)

    def anchor(self, name: str) -> Op[Anchored]:
        """Add the current mark to a place, if the record meets the place's anchors."""
        place = found_place(name)
        before = yield InThread(place.read)
        rolling, found = yield from verify_and_roll(
            self._capabilities, expected_marks(place, before)
        )
        _refuse(found, place)
        if not rolling.known:
            raise StoreUnsuitable(
                "the beginning of the record was trimmed away and no checkpoint stands for it;"
                " run 'interlock maintain', then anchor again"
            )
        if before and not rolling.compared:
            raise StoreUnsuitable(
                f"no anchor in {place.name} speaks about an entry that is still here, so one more"
                " would prove nothing about them; find out who dropped the entries, keep the place"
                " as it is, and anchor to a new one"
            )
        mark = rolling.mark
        if not before or before[-1].mark != mark:
            at = round(self._clock.wall(), 3)
            made = AnchorLine(at=at, **mark._asdict())
            yield InThread(lambda: place.add(made))
        return Anchored(
            place=place.name, revision=mark.revision, entries=mark.entries, digest=mark.digest
        )


def _refuse(found: Verified, place: AnchorPlace) -> None:
    """Raise if the record is not fit to be anchored: an anchor would make it look sound."""
    met = found.anchored
    spoilt = {finding.verdict: finding for finding in reversed(found.findings)}
    if (wrong := spoilt.get("integrity")) is not None:
        raise StoreDamaged(
            f"the record contradicts itself at {wrong.revision or wrong.key}: it is not anchored;"
            " run 'interlock record verify'"
        )
    if (wrong := spoilt.get("truncation")) is not None:
        since = f"since revision {met}, whose anchor it meets" if met else "or it is another store"
        raise StoreDamaged(
            f"the record does not meet the anchor at revision {wrong.revision} in {place.name}:"
            f" it was cut or changed, {since}; run 'interlock record verify --anchor {place.name}'"
        )
    if (wrong := spoilt.get("completeness")) is not None:
        raise StoreDamaged(
            f"something is missing from the record at {wrong.revision or wrong.key}: it is not"
            " anchored; run 'interlock record verify'"
        )
