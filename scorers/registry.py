"""Settings -> the scorer chain. Wrong settings are reported here, before the first turn is read."""

from __future__ import annotations

from pathlib import Path

from scorers.custom import load_reward
from scorers.judge import NO_KEY, Judge, local_base
from scorers.provider import Provider
from scorers.rules import RULES
from scorers.scorer_chain import ScorerChain
from scorers.self_test import SelfTestCache
from store.errors import ConfigError
from store.settings import Settings

#: A rubric is woven into every question; a book is not a rubric.
MAX_RUBRIC = 8000


def build_scorer_chain(settings: Settings, judge_url: str = "", judge_model: str = "") -> ScorerChain:
    """Return who scores.

    Args:
        judge_url: base URL of the local backend, for ``--judge self``.
        judge_model: name of the base model there; "": the policy's.

    Raises:
        ConfigError: one sentence about the first setting that is wrong.
    """
    custom = load_reward(settings.custom_rm_path) if settings.custom_rm_path else None
    judge = _judge(settings, judge_url, judge_model)
    if settings.judge != "auto":
        return ScorerChain(rules=RULES, custom=custom, judge=judge)
    if judge is None:
        return ScorerChain(
            rules=RULES, custom=custom, judge=None, judge_test="none: there is no local base model"
        )
    return ScorerChain(
        rules=RULES,
        custom=custom,
        judge=None,
        candidate=judge,
        judge_test="not tested yet",
        test_cache=SelfTestCache(path=settings.home / "judge-self-test.json", model=settings.model_path),
    )


def _judge(settings: Settings, judge_url: str, judge_model: str) -> Judge | None:
    rubric = read_rubric(settings.rubric)
    name = settings.resolved_judge
    if name == "none":
        return None
    if name == "self":
        # Version 0, never the adapter: a policy that judges itself by what it just learnt agrees with itself.
        base = settings.judge_api_base or (local_base(judge_url) if judge_url else "")
        if not base:
            raise ConfigError(
                "--judge self needs a local backend; with --upstream name a judge, or use --judge none"
            )
        model = f"openai/{judge_model or settings.policy}"
        # the backend's own key goes to the backend only
        key = settings.judge_api_key or ("" if settings.judge_api_base else settings.backend_key) or NO_KEY
    else:
        model, base, key = name, settings.judge_api_base, settings.judge_api_key
    return Judge(
        Provider(model, api_base=base, api_key=key),
        votes=settings.prm_m,
        temperature=settings.prm_temperature,
        max_tokens=settings.prm_max_tokens,
        rubric=rubric,
        # rl learns from values alone; opd and sdpo from hints alone, and ask for values only to report them.
        ask_verdict=settings.method in ("rl", "combine") or settings.eval_mode,
        ask_hint=settings.method != "rl",
    )


def read_rubric(path: str) -> str:
    """Return the rubric's text, "" for no rubric.

    Raises:
        ConfigError: the file is missing, empty, too long or not text.
    """
    if not path:
        return ""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--rubric {path!r}: cannot be read: {reason}") from exc
    if not text:
        raise ConfigError(f"--rubric {path!r}: the file is empty")
    if len(text) > MAX_RUBRIC:
        raise ConfigError(f"--rubric {path!r}: {len(text)} characters are too many, use at most {MAX_RUBRIC}")
    return text
