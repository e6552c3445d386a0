"""The grammar of a reply, from the fields of a request."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from serving.openai_server.engine import EngineLimits
from serving.openai_server.schemas import ChatBody, OutputForm, RequestError, output_form, parse_body

LIMITS = EngineLimits(name="an engine", max_sequences=4, is_constrained=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def form(*, tags: bool = True, **fields: Any) -> OutputForm:
    body = {"messages": [{"role": "user", "content": "hi"}]} | fields
    return output_form(parse_body(ChatBody, orjson.dumps(body), LIMITS), LIMITS, tags_are_tokens=tags)


def rules(made: OutputForm) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in made.grammar.splitlines())


def test_a_format_is_the_whole_reply() -> None:
    made = form(response_format=FORMAT)
    assert rules(made)["start"] == "answer"
    written = json.loads(rules(made)["answer"].removeprefix("%json "))
    assert written.pop("x-guidance")
    assert written == {**SCHEMA, "additionalProperties": False}
    assert not made.parses_calls
    assert '"type": "object"' in form(response_format={"type": "json_object"}).grammar
    assert not form(response_format={"type": "text"}).grammar


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"a": True}}, True),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": True}, False),
        ({"properties": {"a": True}, "patternProperties": {"^b": True}}, False),
        ({"properties": {"a": True}, "anyOf": [{"required": ["a"]}]}, False),
        ({"properties": {"a": True}, "$defs": {"x": {"allOf": [True, True]}}}, False),
    ],
)
def test_an_object_has_no_more_properties_than_it_names(schema: dict[str, Any], closed: bool) -> None:
    made = form(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    assert ('"additionalProperties": false' in made.grammar) is closed


def test_objects_inside_are_closed_and_names_are_not_keywords() -> None:
    inner = {"type": "object", "properties": {"properties": {"enum": [{"properties": 1}]}}}
    schema = {"$defs": {"n": inner}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    made = form(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    written = json.loads(rules(made)["answer"].removeprefix("%json "))
    assert written["$defs"]["n"] == {**inner, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "bounded"),
    [
        ({"type": "string"}, {"maxLength": 400}),
        ({"type": "string", "minLength": 500}, {"maxLength": 500}),
        ({"type": "string", "enum": ["a"]}, {}),
        ({"type": "integer"}, {"minimum": -999999999, "maximum": 999999999}),
        ({"type": "number"}, {"minimum": -999999999, "maximum": 999999999, "multipleOf": 0.0001}),
        ({"type": "number", "minimum": 0}, {}),
        ({"type": "array", "minItems": 2}, {"maxItems": 8}),
        ({"properties": {"type": {"const": "string"}}}, {"additionalProperties": False}),
    ],
)
def test_what_a_schema_leaves_open_is_bounded_for_a_small_model(
    schema: dict[str, Any], bounded: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}  # fmt: skip
    limits = replace(LIMITS, bounds_values=True)
    made = output_form(parse_body(ChatBody, orjson.dumps(body), limits), limits, tags_are_tokens=True)
    written = json.loads(rules(made)["answer"].removeprefix("%json "))
    assert written.pop("x-guidance")
    assert written == schema | bounded


@pytest.mark.parametrize(("max_tokens", "longest"), [(20, 16), (100, 40), (200, 100), (100_000, 400)])
def test_strings_of_a_small_model_are_as_short_as_its_reply_must_be(max_tokens: int, longest: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}  # fmt: skip
    limits = replace(LIMITS, bounds_values=True)
    made = output_form(parse_body(ChatBody, orjson.dumps(body), limits), limits, tags_are_tokens=True)
    written = json.loads(rules(made)["answer"].removeprefix("%json "))
    assert {one["maxLength"] for one in written["properties"].values()} == {longest}


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_function_that_names_no_parameters_takes_none(parameters: Any) -> None:
    function = {"name": "ping"} | ({} if parameters is None else {"parameters": parameters})
    made = rules(form(tools=[{"type": "function", "function": function}], tool_choice="required"))
    assert '"properties": {}, "additionalProperties": false' in made["arguments_0"]


def test_a_client_cannot_change_the_grammars_options() -> None:
    schema = {**SCHEMA, "x-guidance": {"lenient": True}}
    made = form(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    assert "lenient" not in made.grammar


def test_tools_beside_a_format_leave_the_model_the_choice() -> None:
    made = form(response_format=FORMAT, tools=TOOLS)
    assert rules(made)["start"] == 'answer | call ("\\n" call)*'
    assert made.parses_calls
    assert rules(form(response_format=FORMAT, tools=TOOLS, tool_choice="none"))["start"] == "answer"


def test_a_required_call_is_one_of_the_tools_and_a_named_one_that_tool_once() -> None:
    required = rules(form(tools=TOOLS, tool_choice="required"))
    assert required["start"] == "call"
    assert required["call"] == '<tool_call> "\\n" (call_0 | call_1) "\\n" </tool_call>'
    assert rules(form(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))["start"] == "call"
    named = rules(form(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}}))
    assert named["start"] == "call"
    assert named["call_0"] == json.dumps('{"name": "g", "arguments": ') + ' arguments_0 "}"'
    assert '"type": "object"' in named["arguments_0"]


def test_tags_that_are_no_tokens_are_text() -> None:
    made = rules(form(tools=TOOLS, tool_choice="required", tags=False))
    assert made["call"] == '"<tool_call>" "\\n" (call_0 | call_1) "\\n" "</tool_call>"'


def test_functions_are_tools_in_an_older_form() -> None:
    functions = [tool["function"] for tool in TOOLS]
    assert form(functions=functions) == OutputForm(parses_calls=True)
    assert form(functions=functions, function_call="none") == OutputForm()
    named = form(functions=functions, function_call={"name": "f"})
    assert named == form(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "response_format"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "functions"),
        ({"functions": [{"name": "f"}], "tools": TOOLS}, "functions"),
        ({"functions": [{"title": "f"}]}, "tools"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "h"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
    ],
)
def test_a_form_that_is_wrong_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        form(**fields)
    assert (caught.value.param, caught.value.status) == (param, 400)
