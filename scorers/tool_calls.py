"""Whether a tool call was malformed: an unknown tool, arguments that cannot be read, or arguments against the tool's schema. Sans-IO.

Only the call is read, never what the tool answered: a command that fails, a missing file or an empty search says nothing about the call. The
schema check covers the keywords that tools use and reports only what they certainly forbid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from store.values import Json

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
#: Schemas nested deeper are not checked.
_MAX_DEPTH = 12


def malformed_calls(calls: Sequence[Json], request: Json) -> list[str]:
    """Return what is wrong with each malformed call of a reply, given the tools that its request offered."""
    tools = request.get("tools")
    functions = (
        [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    )
    offered = {f["name"]: f.get("parameters") for f in functions if isinstance(f, dict) and "name" in f}
    if not offered:
        return []  # the tools are unknown: nothing can be checked
    return [fault for call in calls if (fault := _call_fault(call, offered)) is not None]


def _call_fault(call: Json, offered: Mapping[str, Any]) -> str | None:
    function = call.get("function")
    if not isinstance(function, dict):
        return None  # a custom tool takes free text
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or name not in offered:
        return f"unknown tool {name!r}"
    try:
        value = json.loads(arguments) if isinstance(arguments, str) and arguments.strip() else {}
    except (ValueError, RecursionError):
        return f"{name}: the arguments are not JSON"
    if not isinstance(value, dict):
        return f"{name}: the arguments are not an object"
    schema = offered[name]
    fault = _schema_fault(value, schema, schema, "arguments", 0) if isinstance(schema, dict) else None
    return None if fault is None else f"{name}: {fault}"


def _schema_fault(value: Any, schema: Any, root: Json, place: str, depth: int) -> str | None:
    """Return what ``schema`` forbids about ``value``, or None."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _schema_fault(value, _resolve(reference, root), root, place, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and options:
            faults = [_schema_fault(value, option, root, place, depth + 1) for option in options]
            if all(faults):
                return faults[0]
    wanted = schema.get("type")
    types = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    if types and not any(_has_type(value, name) for name in types) and not schema.get("nullable"):
        return f"{place} is not of type {' or '.join(map(str, types))}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{place} is none of the allowed values"
    if isinstance(value, dict):
        return _object_fault(value, schema, root, place, depth)
    if isinstance(value, list):
        faults = [
            _schema_fault(item, schema.get("items"), root, f"{place}[]", depth + 1) for item in value[:64]
        ]
        return next(filter(None, faults), None)
    return None


def _object_fault(value: Json, schema: Json, root: Json, place: str, depth: int) -> str | None:
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list):
        missing = [name for name in required if isinstance(name, str) and name not in value]
        if missing:
            return f"{place} lacks {missing[0]!r}"
    if not isinstance(properties, dict):
        return None
    extra = [name for name in value if name not in properties]
    if extra and schema.get("additionalProperties") is False and "patternProperties" not in schema:
        return f"{place} has no {extra[0]!r}"
    faults = [
        _schema_fault(value[name], part, root, f"{place}.{name}", depth + 1)
        for name, part in properties.items()
        if name in value
    ]
    return next(filter(None, faults), None)


def _has_type(value: Any, name: Any) -> bool:
    """Whether a value has a JSON type; an unknown type allows everything."""
    types = _TYPES.get(name)
    if types is None:
        return True
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, types) and (name != "integer" or value == int(value))  # type: ignore[call-overload]  # a number by its type


def _resolve(reference: str, root: Json) -> Any:
    """Return the part of ``root`` that a local reference names; None for another one."""
    if not reference.startswith("#/"):
        return None
    part: Any = root
    for name in reference[2:].split("/"):
        part = part.get(name) if isinstance(part, dict) else None
    return part
