"""Conversations are assigned by a hash: sticky, by the share, and anew for each version."""

from store.canary_arms import conversation_of, is_in_canary, known_conversations


def opened(text: str, *more: str, key: str = "ann", user: str | None = None) -> str:
    roles = ["user", "assistant"] * (len(more) + 1)
    messages = [{"role": "system", "content": f"It is {len(more)} o'clock."}]
    messages += [{"role": role, "content": said} for role, said in zip(roles, (text, *more), strict=False)]
    return conversation_of(key, user, None, messages)


def test_a_conversation_keeps_its_name_while_it_grows_and_its_system_prompt_changes() -> None:
    assert opened("Plan a trip.") == opened("Plan a trip.", "To where?", "Rome.")
    assert opened("Plan a trip.") != opened("Plan a dinner.")


def test_keys_and_users_have_conversations_of_their_own() -> None:
    assert len({opened("Hi"), opened("Hi", key="bob"), opened("Hi", user="u")}) == 3


def test_a_named_session_is_the_conversation_whatever_its_messages_are() -> None:
    first = conversation_of("ann", None, "s1", [{"role": "user", "content": "Hi"}])
    later = conversation_of("ann", None, "s1", [{"role": "user", "content": "Summary of all so far"}])
    other = conversation_of("ann", None, "s2", [{"role": "user", "content": "Hi"}])
    assert first == later != other


def test_the_share_of_conversations_is_what_was_asked_for_and_each_version_draws_anew() -> None:
    names = [opened(f"Question {i}") for i in range(4_000)]
    for share in (0.1, 0.5):
        taken = sum(is_in_canary(name, "tiny", 7, share) for name in names)
        assert abs(taken / len(names) - share) < 0.03
    both = sum(is_in_canary(name, "tiny", 7, 0.5) and is_in_canary(name, "tiny", 8, 0.5) for name in names)
    assert abs(both / len(names) - 0.25) < 0.03
    assert not any(is_in_canary(name, "tiny", 7, 0.0) for name in names)


def test_recorded_conversations_are_known_by_their_session_and_by_their_first_message() -> None:
    known = known_conversations([("ann", None, "s1", "Hi")])
    assert opened("Hi") in known
    assert conversation_of("ann", None, "s1", []) in known
    assert opened("Hi", key="bob") not in known
