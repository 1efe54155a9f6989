"""The format of small files: JSON with sorted keys, ``schema: 1``, times in UTC, RFC 3339 with milliseconds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .. import masking
from ..errors import BadInput, Damaged

if TYPE_CHECKING:
    from pydantic import ValidationError

SCHEMA = 1
DIGEST = "record_digest"


def timestamp(when: datetime | None = None) -> str:
    """A time (the present by default) in UTC, RFC 3339 with milliseconds, e.g. ``2026-01-31T12:00:00.000Z``."""
    when = (when or datetime.now(UTC)).astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def parse_time(text: str) -> datetime:
    """The inverse of `timestamp`. Raises ValueError, also for a time with no zone."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return when


def time_of(value: object) -> datetime | None:
    """A time that stands in a record; None if there is none, or none that can be read."""
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8; equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def dump(record: Mapping[str, Any]) -> bytes:
    """A record as the bytes of its small file, with the schema added and credentials masked."""
    whole = {**masking.mask_all(record), "schema": SCHEMA}
    return json.dumps(whole, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).encode()


def digest(record: Mapping[str, Any]) -> str:
    """sha256 of the content of a record, as ASCII JSON with sorted keys and no spaces, without its own digest."""
    import hashlib  # 5 ms, which a scheduler that only loads the stages need not spend

    content = {key: value for key, value in record.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal(record: Mapping[str, Any]) -> bytes:
    """As `dump`, with a digest of the content, which `load` checks."""
    whole = {**masking.mask_all(record), "schema": SCHEMA}
    return dump({**whole, DIGEST: digest(whole)})


def unsealed_problem(record: Mapping[str, Any], known: Collection[str]) -> str:
    """Why a record without a digest is not of a version that wrote none: fields other than `known`; else empty."""
    unknown = sorted(record.keys() - {*known, "schema"})
    return "" if DIGEST in record or not unknown else f"{DIGEST} is missing, and {unknown[0]!r} is no field of it"


def load(data: bytes, name: str) -> dict[str, Any]:
    """The record in a small file.

    Args:
      name: the file, for error messages.

    Raises:
      Damaged: not a JSON object (cut short, or another program's file), or not the content that its digest is of.
      BadInput: written by a newer version of this package.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name}: not valid JSON ({error}); it was cut short, or elastic-tpu did not write it") from error
    if not isinstance(record, dict):
        raise Damaged(f"{name}: a JSON object was expected, not {type(record).__name__}")
    check_schema(record.get("schema", SCHEMA), name)
    if DIGEST in record and record[DIGEST] != (now := digest(record)):
        was = str(record[DIGEST])
        raise Damaged(f"{name}: {DIGEST} is {was[:12]}, the content's is {now[:12]}: it was changed or damaged")
    return record


def wrong_fields(error: ValidationError) -> str:
    """What is wrong with a record, in a line: its first three fields that are wrong."""
    found = error.errors(include_url=False)[:3]
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        + ("" if one["type"] == "missing" else f", not {str(one['input'])[:40]}")
        for one in found
    )


def check_schema(schema: object, name: str) -> None:
    """Check that this version of the package can read a file of this schema.

    Raises:
      Damaged: the schema is not a number.
      BadInput: the schema is newer; both are named.
    """
    if not isinstance(schema, int):
        raise Damaged(
            f"{name}: schema {schema!r} is not a number; elastic-tpu did not write the file, or it was damaged"
        )
    if schema > SCHEMA:
        raise BadInput(
            f"{name}: schema {schema} is newer than {SCHEMA}, the newest this version reads; upgrade elastic-tpu"
        )
