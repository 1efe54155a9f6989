"""How small files are written: JSON with sorted keys, ``schema: 1``, UTC times in RFC 3339 with milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..errors import BadInput

SCHEMA = 1


def timestamp(when: datetime | None = None) -> str:
    """UTC time in RFC 3339 with milliseconds, e.g. ``2026-01-31T12:00:00.000Z``."""
    when = (when or datetime.now(UTC)).astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def parse_time(text: str) -> datetime:
    """The inverse of `timestamp`. Raises ValueError, also for a time with no zone."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return when


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8; equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def dump(record: Mapping[str, Any]) -> bytes:
    """A record as the bytes of its small file."""
    return json.dumps(
        {**record, "schema": SCHEMA}, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False
    ).encode()


def load(data: bytes, name: str) -> dict[str, Any]:
    """Parse a small file; a cut or foreign one, and one of a newer schema, is refused by name.

    Raises:
      BadInput: not a JSON object, or written by a newer version of this package.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: not valid JSON ({error}); it was cut short or is not ours") from error
    if not isinstance(record, dict):
        raise BadInput(f"{name}: a JSON object was expected, not {type(record).__name__}")
    check_schema(record.get("schema", SCHEMA), name)
    return record


def check_schema(schema: object, name: str) -> None:
    """Refuse what a newer version of this package wrote.

    Raises:
      BadInput: names both schemas.
    """
    if not isinstance(schema, int):
        raise BadInput(f"{name}: schema {schema!r} is not a number; the file is not ours, or was damaged")
    if schema > SCHEMA:
        raise BadInput(
            f"{name}: schema {schema} is newer than {SCHEMA}, the newest this version reads; upgrade elastic-tpu"
        )
