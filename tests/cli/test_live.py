"""What `status` says about requests by API and path, and about versions."""

from cli.live import traffic_lines, version_lines
from store.values import AdapterState, AdapterVersion


def test_only_chat_needs_no_line() -> None:
    assert traffic_lines({"recorded_by_api": {"chat": 3}, "unrecorded_by_path": {}}) == []


def test_an_endpoint_of_others_is_named_with_what_learning_needs() -> None:
    (line,) = traffic_lines({"is_local": False})
    assert line.startswith("not learning: another server serves the model (--upstream)")
    assert "--backend vllm" in line


def test_translated_and_forwarded_requests_are_counted() -> None:
    proxy = {
        "recorded_by_api": {"chat": 3, "responses": 2, "messages": 1},
        "unrecorded_by_path": {"/v1/embeddings": 4, "/v1/audio/speech": 1},
        "tools_left_out": {"web_search": 2},
        "native_apis": True,
    }
    assert traffic_lines(proxy) == [
        "requests: 3 chat · 2 Responses · 1 Messages (Responses and Messages are translated to chat)",
        "forwarded and not recorded: 1 to /v1/audio/speech · 4 to /v1/embeddings, native_apis is on",
        "hosted tools that were left out: web_search in 2 requests",
    ]


def test_a_refused_version_and_the_outcome_of_attestation_are_shown() -> None:
    refused = AdapterVersion(
        policy="mine", version=4, path="", content_hash="", parent_version=3, state=AdapterState.REFUSED,
        reason="the backend serves the base model", method="combine", metrics={}, created_at=0.0,
    )  # fmt: skip
    proxy = {"backend": {"attested": {"mine@3": "attested: log-probabilities differ by 0.0001 at most"}}}
    assert version_lines(proxy, [refused]) == [
        "mine@4 is refused: the backend serves the base model",
        "mine@3 is attested: log-probabilities differ by 0.0001 at most",
    ]
    assert version_lines(None, []) == version_lines({"backend": {}}, []) == []
