from __future__ import annotations

import base64
import zlib

import pytest

from interlock.core import segment
from interlock.core.segment import pack, unpack

ENTRIES = [
    (3, "txn_a", b'{"verb":"lock.acquire","thing":"lock/a b"}'),
    (4, "txn_b", b'{"verb":"void"}'),
    (9, "txn_c", '{"agent":"\u2028 ü"}'.encode()),
]


@pytest.mark.parametrize("entries", [[], ENTRIES[:1], ENTRIES])
def test_what_is_packed_comes_out_byte_for_byte(entries: list[tuple[int, str, bytes]]) -> None:
    assert list(unpack(pack(entries))) == entries


@pytest.mark.parametrize(
    "packed",
    [
        "not base64!",
        base64.b64encode(b"not compressed").decode(),
        base64.b64encode(zlib.compress(b"no revision here")).decode(),
        base64.b64encode(zlib.compress(b"12 only")).decode(),
    ],
)
def test_a_damaged_segment_is_a_value_error(packed: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(unpack(packed))


def test_a_segment_that_would_fill_the_memory_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack([(1, "txn_1", b"x" * 5000)])
    assert len(list(unpack(packed))) == 1
    monkeypatch.setattr(segment, "_MOST", 5000)
    with pytest.raises(ValueError, match="holds more than"):
        list(unpack(packed))


@pytest.mark.parametrize("name", ["0" * 17, "0" * 15, "", "+" + "1" * 15, "٣" * 16])
def test_only_sixteen_digits_name_a_segment(name: str) -> None:
    assert segment.last_revision(name) is None
    assert segment.last_revision("0" * 15 + "7") == 7
