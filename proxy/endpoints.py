"""The proxy's HTTP interface as data: endpoints, request headers, feedback fields. Sans-IO.

`proxy.app` dispatches by `find_endpoint`; `scripts/generate_reference.py` writes docs/reference/http.md from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method and path.

    Attributes:
        path: a trailing ``*`` matches every continuation.
        needs_key: the client must send a key, where keys are in use.
        is_local_only: only for a backend that Patina starts; another endpoint answers for itself.
        is_translated: of another API, translated to chat; with `native_apis` the backend answers for itself.
    """

    method: str
    path: str
    summary: str
    needs_key: bool = True
    is_local_only: bool = False
    is_translated: bool = False

    def matches(self, method: str, path: str) -> bool:
        if self.method not in (method, "any"):
            return False
        return path.startswith(self.path[:-1]) if self.path.endswith("*") else path == self.path


HEALTH = Endpoint(
    method="any",
    path="/healthz",
    summary="whether the proxy runs, the backend answers, and the record is available",
    needs_key=False,
)
HEALTH_DETAIL = Endpoint(
    method="GET",
    path="/health",
    summary="whether backend, record and trainer work together: status healthy or degraded (also `/v1/health`)",
    needs_key=False,
)
ROOT = Endpoint(
    method="GET",
    path="/",
    summary="name and version; a browser is led to the web page at `/dashboard`",
    needs_key=False,
)
CHAT = Endpoint(
    method="POST",
    path="/v1/chat/completions",
    summary="a chat request: forwarded and recorded; the reply has the header `x-patina-turn`",
)
STORED = Endpoint(
    method="GET",
    path="/v1/chat/completions",
    summary="the key's chat completions in the record; `model`, `metadata[k]`, `after`, `limit`, `order`, `stored=all`",
    is_translated=True,
)
STORED_ONE = Endpoint(
    method="any",
    path="/v1/chat/completions/*",
    summary="`GET` one and its `messages`; `POST` its metadata (`feedback`, `rating`, `thumbs`, `score` are feedback); "
    "`DELETE`: hidden at once, then forgotten",
    is_translated=True,
)
JOBS = Endpoint(
    method="any",
    path="/v1/fine_tuning/jobs*",
    summary="training as OpenAI shows it: jobs that learn an uploaded file (`POST`, `POST …/cancel`), and one job for each policy, which learns from what is recorded (`POST …/pause`, `…/resume`, `…/rollback`); their `events` and `checkpoints`",
    is_local_only=True,
)
FILES = Endpoint(
    method="any",
    path="/v1/files*",
    summary="JSON lines for fine-tuning, as OpenAI takes them: upload, list, retrieve, `content`; `DELETE` forgets the file and the versions that learnt from it",
    is_local_only=True,
)
RESPONSES = Endpoint(
    method="POST",
    path="/v1/responses",
    summary="a request of the Responses API: translated to chat, recorded, and answered as a response",
    is_translated=True,
)
RESPONSE = Endpoint(
    method="any",
    path="/v1/responses/*",
    summary="`GET` or `DELETE` of a response, its `input_items`",
    is_translated=True,
)
TOKENS = Endpoint(
    method="POST",
    path="/v1/responses/input_tokens",
    summary="the number of tokens of a response's input; not recorded",
    is_translated=True,
)
CONVERSATIONS = Endpoint(
    method="any",
    path="/v1/conversations*",
    summary="conversations of the Responses API: create, retrieve, update, delete; add, list, retrieve, delete `items`",
    is_translated=True,
)
MESSAGES = Endpoint(
    method="POST",
    path="/v1/messages",
    summary="a request of Anthropic's Messages API: translated to chat, recorded, and answered as a message",
    is_translated=True,
)
COUNT = Endpoint(
    method="POST",
    path="/v1/messages/count_tokens",
    summary="the number of tokens of a message's prompt; not recorded",
    is_translated=True,
)
COMPLETIONS = Endpoint(
    method="POST",
    path="/v1/completions",
    summary="a completion request: served by the policy and recorded, where its prompt is one text",
    is_local_only=True,
)
STATUS = Endpoint(
    method="GET",
    path="/v1/patina/status",
    summary="counts of turns and versions, the processes, the backend's capabilities, the state of the store; for a key that is no "
    "owner only its own turns and policy",
)
FEEDBACK = Endpoint(
    method="POST", path="/v1/feedback", summary="explicit feedback on a turn (fields below); idempotent"
)
FATE = Endpoint(
    method="GET",
    path="/v1/patina/turns/*",
    summary="what became of a turn (its id): `stage`, `drop_reason`, the `version` that it trained, `is_live` when that or a later one serves",
)
FEEDBACK_STATE = Endpoint(
    method="GET", path="/v1/feedback/*", summary="what became of a batch of feedback, by its `request_id`"
)
LORA = Endpoint(
    method="any",
    path="/v1/lora*",
    summary="as in CLaaS: `POST /v1/lora/init` binds a `lora_id` to the policy of the key, `GET /v1/lora?prefix=` lists, `DELETE "
    "/v1/lora?lora_id=` removes it and makes the base model live, `GET /v1/lora/export?lora_id=[&version=][&optimizer=1]` returns a zip for PEFT and vLLM",
    is_local_only=True,
)
SCORE = Endpoint(
    method="POST",
    path="/v1/score",
    summary="the log-probabilities of a given `completion` after `messages`, under the live or the named version (`model`): `tokens`, "
    "`logprobs`, `logprob_sum`, `prompt_tokens`, `completion_tokens`; not recorded",
    is_local_only=True,
)
MODELS = Endpoint(
    method="GET",
    path="/v1/models",
    summary="the policies that the key may use, with their live versions",
    is_local_only=True,
)
MODEL = Endpoint(
    method="GET",
    path="/v1/models/*",
    summary="the same for one name, or 404 `model_not_found`",
    is_local_only=True,
)
#: In the order in which they are tried.
ENDPOINTS = (
    CHAT,
    STORED,
    STORED_ONE,
    JOBS,
    FILES,
    RESPONSES,
    TOKENS,
    RESPONSE,
    CONVERSATIONS,
    MESSAGES,
    COUNT,
    COMPLETIONS,
    HEALTH,
    HEALTH_DETAIL,
    ROOT,
    STATUS,
    FEEDBACK,
    FATE,
    FEEDBACK_STATE,
    LORA,
    SCORE,
    MODELS,
    MODEL,
)

#: Everything else under this prefix is forwarded as bytes and not recorded.
FORWARDED_PREFIX = "/v1/"

#: Request headers that Patina reads. None of them is forwarded.
REQUEST_HEADERS: Mapping[str, str] = {
    "x-patina-key": "the key of the proxy; with `--upstream-auth passthrough` the only place for it",
    "x-patina-train": "`off`: this request is never trained on (also `metadata.patina_train`)",
    "x-patina-wishes": "`off`: no wish is added to the prompt of this request (also `metadata.patina_wishes`)",
    "x-turn-type": "`main` or `side`: overrides the classification",
    "x-session-id": "names the session (also `metadata.session_id`, or a base URL `/s/<session>/v1`)",
    "x-session-done": "`true`: the session ends with this request",
}

#: Response headers that Patina adds.
RESPONSE_HEADERS: Mapping[str, str] = {
    "x-patina-turn": "the turn's id, for `/v1/feedback` and `explain`",
    "x-patina-journal": "`memory`: the disk is full or broken, turns wait in memory to be written; `lost`: the memory is full too. As known when the reply begins",
    "x-patina-version": "the weights that answered, as `policy@version`; version 0 is the base model",
    "x-patina-wishes": "the number of wishes that were added to the prompt; absent where none was",
    "x-request-id": "the same id, where the backend sends none of its own",
}

#: Fields of a batch of feedback (CLaaS).
BATCH_FIELDS: Mapping[str, str] = {
    "requests": "1 to 64 items: the fields above, and `lora_id`, the same in each (also `response_id`, `training`)",
    "orchestration": "`sleep_before`, `wake_after`, `wake_on_failure`, `sleep_level`: read, and named in `ignored`",
    "?wait=true": "in the query: the answer comes after the step (at most 600 s): status 200 with `distill_result`, `timing_ms`",
}

#: Fields of a feedback body.
FEEDBACK_FIELDS: Mapping[str, str] = {
    "turn_id": "the turn: its id",
    "completion_id": "or the id of the completion",
    "prompt": "or the prompt (a string or messages), together with `response`",
    "response": "the completion's text",
    "score": "a number from -1 to 1",
    "thumbs": '"up" or "down", or a boolean',
    "rating": 'a number from 1 to 5, or "up" or "down"',
    "text": "what was wrong or right, in words (also `feedback`, `comment`), at most 8,000 characters; it becomes the hint",
    "idempotency_key": "a string of at most 200 characters; default: made from the content",
}


def find_endpoint(method: str, path: str, *, is_local: bool, native_apis: bool = False) -> Endpoint | None:
    """Return the endpoint that a request means; None: it is forwarded or refused.

    Args:
        native_apis: the backend serves the Responses and Messages APIs itself.
    """
    for endpoint in ENDPOINTS:
        if endpoint.is_translated and native_apis:
            continue
        if endpoint.matches(method, path) and (is_local or not endpoint.is_local_only):
            return endpoint
    return None


def methods_of(path: str, *, native_apis: bool = False) -> list[str]:
    """Return the methods of an endpoint with this very path; none where there is none."""
    return [one.method for one in ENDPOINTS if one.path == path and not (one.is_translated and native_apis)]


def is_messages_path(path: str) -> bool:
    """Whether a path belongs to the Messages API, whose clients expect its own shape of errors."""
    return path == MESSAGES.path or path.startswith(f"{MESSAGES.path}/")
