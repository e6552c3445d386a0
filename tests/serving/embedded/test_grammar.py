"""Grammars over a tokenizer, and replies that are held to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from serving.embedded.model import Model, load_model
from serving.openai_server.engine import GrammarError
from serving.openai_server.grammar import GrammarCompiler
from serving.openai_server.structured import build_grammar
from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from serving.openai_server.values import OutputChunk
from serving.openai_server.vocabulary import Vocabulary
from tests.serving.embedded.test_batch_engine import PROMPTS, Call, RunningEngine, one_thread

__all__ = ["one_thread"]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "mood": {"enum": ["good", "bad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model), device="cpu")


@pytest.fixture(scope="module")
def compiler(model: Model) -> GrammarCompiler:
    return GrammarCompiler(model.vocabulary, model.end_ids)


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[RunningEngine]:
    with RunningEngine(model) as running:
        yield running


def answer(schema: dict[str, Any]) -> str:
    return build_grammar(schema, (), many_calls=False, tags_are_tokens=True)


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "mood"]
        and len(value["name"]) <= 6
        and 0 <= value["age"] <= 99
        and value["mood"] in ("good", "bad")
    )


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_sample_of_a_random_model_keeps_to_the_schema_and_ends(
    engine: RunningEngine, compiler: GrammarCompiler, temperature: float
) -> None:
    call = engine.ask(
        PROMPTS[0],
        n=4,
        grammar=compiler.compile(answer(PERSON)),
        temperature=temperature,
        seed=5,
        max_tokens=200,
        min_tokens=150,  # the grammar decides where the reply ends
    ).wait()
    assert all(call.last(i).finish_reason == "stop" and is_person(call.text(i)) for i in range(4))
    assert temperature == 0.0 or len({call.text(i) for i in range(4)}) > 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}, "required": ["a", "b"]},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        {"type": "array", "items": {"type": "string"}},
    ],
)  # fmt: skip
def test_a_random_model_ends_every_value_that_is_bounded(
    engine: RunningEngine, compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    bounded = build_grammar(schema, (), many_calls=False, tags_are_tokens=True, most_characters=120)
    call = engine.ask(
        PROMPTS[0], n=2, grammar=compiler.compile(bounded), temperature=1.5, seed=3, max_tokens=1500
    ).wait()
    for i in range(2):
        assert call.last(i).finish_reason == "stop"
        assert isinstance(json.loads(call.text(i)), dict | list)


def test_the_logprobs_are_the_models_own(
    model: Model, engine: RunningEngine, compiler: GrammarCompiler
) -> None:
    call = engine.ask(PROMPTS[1], grammar=compiler.compile(answer(PERSON)), max_tokens=200).wait()
    ids = torch.tensor([[*PROMPTS[1], *call.ids()]])
    own = model.network(input_ids=ids).logits[0, len(PROMPTS[1]) - 1 : -1].log_softmax(-1)
    expected = own.gather(-1, torch.tensor(call.ids())[:, None]).squeeze(-1).tolist()
    assert call.logprobs() == pytest.approx(expected, abs=1e-3)


def test_requests_without_a_grammar_get_what_they_get_alone(
    engine: RunningEngine, compiler: GrammarCompiler
) -> None:
    alone = [engine.ask(prompt, seed=i, temperature=0.9).wait().ids() for i, prompt in enumerate(PROMPTS[:3])]
    held = [
        engine.ask(PROMPTS[3], grammar=compiler.compile(answer(PERSON)), max_tokens=200) for _ in range(3)
    ]
    free = [engine.ask(prompt, seed=i, temperature=0.9) for i, prompt in enumerate(PROMPTS[:3])]
    assert [call.wait().ids() for call in free] == alone
    assert all(is_person(call.wait().text()) for call in held)


TOOLS = [{"name": 'we"ird\\ 名', "parameters": PERSON}, {"name": "g", "parameters": {"type": "object"}}]


def parsed_call(text: str) -> ToolCall:
    parser = ToolCallParser()
    (found,) = [*parser.feed(text), *parser.flush()]
    assert isinstance(found, ToolCall)
    return found


def test_a_required_call_parses(engine: RunningEngine, compiler: GrammarCompiler) -> None:
    made = build_grammar(None, TOOLS[:1], many_calls=False, tags_are_tokens=True)
    call = engine.ask(PROMPTS[2], grammar=compiler.compile(made), max_tokens=300).wait()
    found = parsed_call(call.text())
    assert found.name == TOOLS[0]["name"]
    assert is_person(found.arguments)


def test_a_tokenizer_without_the_tags_writes_them_as_text(tiny_model: Path) -> None:
    made = json.loads((tiny_model / "tokenizer.json").read_text())
    made["added_tokens"] = [one for one in made["added_tokens"] if one["special"]]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(made)), eos_token="<|im_end|>"
    )
    vocabulary = Vocabulary(tokenizer, 512)
    assert not vocabulary.has_tool_tags
    end = int(tokenizer.eos_token_id)
    grammar = GrammarCompiler(vocabulary, frozenset({end})).compile(
        build_grammar(None, TOOLS[:1], many_calls=False, tags_are_tokens=False)
    )
    noise, ids = torch.Generator().manual_seed(4), list[int]()
    while end not in ids:
        line = torch.randn(512, generator=noise)
        line[torch.from_numpy(grammar.banned())] = -torch.inf
        ids.append(int(line.argmax()))
        grammar.accept(ids[-1])
    assert is_person(parsed_call(vocabulary.decode(ids[:-1])).arguments)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"a": {"not": {"const": 1}}}}, r'Unimplemented keys: \["not"\]'),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:9/x"}, "does not fetch"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "format": "frob"}, "Unknown format: frob"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(
    compiler: GrammarCompiler, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        compiler.compile(answer(schema))
    assert "\n" not in str(caught.value)
    assert not str(caught.value).startswith("at ")
    assert "start:" not in str(caught.value)


def test_huge_schemas_compile(compiler: GrammarCompiler) -> None:
    names = [f"p{i}" for i in range(1000)]
    wide = {"type": "object", "properties": {key: {"type": "string"} for key in names}, "required": names}
    compiler.compile(answer(wide))
    compiler.compile(answer({"enum": [f"value {i}" for i in range(5000)]}))


def test_a_grammar_that_fails_on_the_way_fails_its_request_alone(
    engine: RunningEngine, compiler: GrammarCompiler
) -> None:
    broken = compiler.compile(answer(PERSON))

    class Breaks:
        def copy(self) -> Breaks:
            return self

        def banned(self) -> Any:
            return broken.banned()

        def accept(self, token_id: int) -> None:
            raise GrammarError("too complex")

    call: Call = engine.ask(PROMPTS[0], grammar=Breaks(), max_tokens=20)
    beside = engine.ask(PROMPTS[1], max_tokens=20)
    last: OutputChunk = call.wait().last()
    assert (last.finish_reason, last.status) == ("error", 400)
    assert last.error == "the schema cannot be enforced: too complex"
    assert beside.wait().last().finish_reason == "length"
