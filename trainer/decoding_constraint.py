"""Whether a request forced tokens on the sampler. A pure function of the body."""

from __future__ import annotations

from store.values import Json

#: Request fields that make engines decode under a grammar.
_GRAMMAR_FIELDS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def decoding_constraint(body: Json) -> str:
    """Return what in a request forces tokens on the sampler, or "".

    A forced token was not sampled: engines report it with logprob 0 or with the model's own logprob, and neither is the probability it was
    drawn with.
    """
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "tool_choice forces a call"
    if isinstance(body.get("function_call"), dict):
        return "function_call forces a call"
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") not in (None, "text"):
        return f"response_format {wanted.get('type')}"
    return next((name for name in _GRAMMAR_FIELDS if body.get(name) is not None), "")
