"""Structured output: what a request asks for as a grammar in llguidance's Lark dialect. Pure.

JSON is written as models write it, `{"a": 1, "b": [2]}`: free white space would let a small model never come to an end. Properties come in the
order of the schema, and an object has no others where the schema names some and is silent about more. For a small model, what the schema
leaves open is also bounded in length. `oneOf` is read as `anyOf`. Unknown keywords are refused when the grammar is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serving.openai_server.toolcalls import CLOSE, OPEN

_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def json_schema_of(response_format: Any) -> dict[str, Any] | None:
    """Return the JSON schema that a `response_format` asks for; None: free text.

    Raises: ValueError, one sentence.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise ValueError("response_format.type must be text, json_object or json_schema")
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise ValueError("response_format needs json_schema.schema, an object")
    return schema


def build_grammar(
    schema: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    many_calls: bool,
    tags_are_tokens: bool,
    most_characters: int = 0,
) -> str:
    """Return the grammar of a reply that is a JSON value, one of the calls, or either.

    Args:
        schema: of the JSON value; None: a reply must be a call.
        tools: functions that may be called.
        many_calls: several calls may follow each other.
        tags_are_tokens: the tokenizer has the tags of a call as tokens of their own.
        most_characters: of a string whose length the schema leaves open; numbers, lists and objects are kept small as well. 0: nothing is bounded.
    """
    rules = []
    starts = []
    if schema is not None:
        starts.append("answer")
        rules.append(f"answer: {_json(schema, most_characters)}")
    if tools:
        starts.append('call ("\\n" call)*' if many_calls else "call")
        opened, closed = (OPEN, CLOSE) if tags_are_tokens else (json.dumps(OPEN), json.dumps(CLOSE))
        names = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules.append(f'call: {opened} "\\n" ({names}) "\\n" {closed}')
    for i, tool in enumerate(tools):
        begin = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "arguments": '
        rules.append(f'call_{i}: {json.dumps(begin, ensure_ascii=False)} arguments_{i} "}}"')
        rules.append(f"arguments_{i}: {_json(_parameters(tool), most_characters)}")
    return "\n".join([f"start: {' | '.join(starts)}", *rules, ""])


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a call's arguments; a function that names none takes none."""
    schema = tool.get("parameters")
    if (
        not isinstance(schema, dict)
        or not schema
        or (schema.get("properties") == {} and not _OPEN & schema.keys())
    ):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return schema


#: Keywords whose value is a schema or a list of schemas; a map of schemas by name.
_SCHEMAS = frozenset({"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: With one of these an object may have properties that are named elsewhere.
_OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref"}
)


#: Bounds for a small model, which may not find the end of a value. With one of these keywords, a value has bounds of its own.
_MOST_ITEMS, _MOST_PROPERTIES, _LARGEST, _FINEST = 8, 4, 10**9 - 1, 0.0001
_STRING_BOUNDS = frozenset({"maxLength", "pattern", "format", "enum", "const"})
_NUMBER_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"}
)
_OBJECT_BOUNDS = frozenset({"properties", "maxProperties", "required", "minProperties", "enum", "const"})


def _bound(schema: dict[str, Any], most_characters: int) -> dict[str, Any]:
    """Return a schema whose own values are bounded where it leaves them open. What the result allows, the schema allows."""
    kind, given = schema.get("type"), schema.keys()
    if kind == "string" and not given & _STRING_BOUNDS:
        return {**schema, "maxLength": max(most_characters, schema.get("minLength", 0))}
    if kind in ("integer", "number") and not given & _NUMBER_BOUNDS:
        digits = {} if kind == "integer" else {"multipleOf": _FINEST}
        return {**schema, "minimum": -_LARGEST, "maximum": _LARGEST, **digits}
    if kind == "array" and not given & {"maxItems", "prefixItems", "enum", "const"}:
        return {**schema, "maxItems": max(_MOST_ITEMS, schema.get("minItems", 0))}
    if kind == "object" and not given & (_OBJECT_BOUNDS | _OPEN - {"additionalProperties"}):
        value = schema.get("additionalProperties", True)
        scalars = [_bound({"type": name}, most_characters) for name in ("string", "integer", "boolean")]
        names = {"^[A-Za-z][A-Za-z0-9_ ]{0,19}$": {"anyOf": scalars} if value is True else value}
        bounded = {"patternProperties": names, "additionalProperties": False}
        return {**schema, **bounded, "maxProperties": _MOST_PROPERTIES}
    return schema


def _close(schema: Any, most_characters: int) -> Any:
    """Return a schema whose objects have no other properties than those that it names, unless it speaks of others.

    A model that is unsure of the end would name property after property. What the result allows, the schema allows.
    """
    if isinstance(schema, list):
        return [_close(one, most_characters) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _SCHEMAS:
            found[name] = _close(value, most_characters)
        elif name in _NAMED_SCHEMAS and isinstance(value, dict):
            found[name] = {key: _close(one, most_characters) for key, one in value.items()}
        else:
            found[name] = value
    if schema.get("properties") and not _OPEN & schema.keys():
        found["additionalProperties"] = False
    return _bound(found, most_characters) if most_characters else found


def _merges_objects(schema: Any) -> bool:
    """Whether several schemas hold for one object: what one of them names, the others must leave open."""
    if isinstance(schema, list):
        return any(_merges_objects(one) for one in schema)
    if not isinstance(schema, dict):
        return False
    return len(schema.get("allOf") or ()) > 1 or any(_merges_objects(one) for one in schema.values())


def _json(schema: Mapping[str, Any], most_characters: int) -> str:
    schema = schema if _merges_objects(schema) else _close(schema, most_characters)
    return "%json " + json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=False)
