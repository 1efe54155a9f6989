"""The JSON Schema of a spec: what an editor needs to complete and check a spec's YAML while it is written.

It knows types, names and simple bounds. What fields mean together is checked by `elastic-tpu plan`.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from .run_spec import RunSpec


class _Untitled(GenerateJsonSchema):
    """Without titles that repeat a field's name, so that a title is always a type in a user's words (fields.py)."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """The schema, with descriptions, and with defaults as a spec writes them (``4h``)."""
    # Mode "serialization": there a default is written as text, in "validation" as seconds.
    made = RunSpec.model_json_schema(mode="serialization", schema_generator=_Untitled)
    anchors: dict[str, Any] = {"patternProperties": {"^x-": {}}}  # keys for anchors, which are ignored
    return {"$schema": GenerateJsonSchema.schema_dialect, **made, **anchors, "title": "elastic-tpu run spec"}
