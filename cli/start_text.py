"""What a start prints first: what starts, the address and the key, a snippet, what to ask, the page, and how to stop."""

from __future__ import annotations

from cli.version_lines import command
from store.examples import COMPLAINTS, QUESTIONS
from store.settings import Settings
from store.version import VERSION


def start_text(settings: Settings, key: str, *, is_new: bool, backend: str) -> str:
    """Return the first lines, in the order in which a person needs them.

    Args:
        key: what clients must send; "": none is asked for. It is shown when it is new, and read from its file in the snippet else.
        backend: which one serves, and why.
    """
    base = f"{settings.gateway_url}/v1"
    served = f"{settings.policy} at {settings.upstream_address}" if settings.upstream else settings.policy
    lines = [
        f"Patina {VERSION} starts {served} (method {settings.method}, home {settings.home})",
        f"{backend[0].upper()}{backend[1:]}",
        "",
        f"  address  {base}",
        f"  key      {_key_line(settings, key, is_new)}",
        "",
        "    from openai import OpenAI",
        f'    client = OpenAI(base_url="{base}", api_key={_key_code(settings, key, is_new)})',
        f'    print(client.chat.completions.create(model="{settings.policy}", messages=[{{"role": "user", "content": "{QUESTIONS[0]}"}}])'
        ".choices[0].message.content)",
        "",
    ]
    if settings.trains_locally:
        lines.append(
            f"Ask “{QUESTIONS[0]}”, then say “{COMPLAINTS[0]}” in the same conversation: it learns from what you say to a reply."
        )
    lines += [
        f"Web page: {settings.gateway_url}/dashboard (`{command(settings, 'open')}` signs you in; “Try it” has questions to click)",
        f"Logs: {settings.logs_folder} · stop with Ctrl-C",
        f"Waiting for {settings.upstream_address} …" if settings.upstream else "Loading the model …",
    ]
    return "\n".join(lines)


def _key_line(settings: Settings, key: str, is_new: bool) -> str:
    if not key:
        return "none is asked for"
    if is_new:
        return f"{key} (shown this once; kept in {settings.key_file})"
    return f"in {settings.key_file}" if settings.api_key is None else "the one you gave"


def _key_code(settings: Settings, key: str, is_new: bool) -> str:
    if is_new or not key:
        return f'"{key or "none"}"'
    return f'open("{settings.key_file}").read().strip()' if settings.api_key is None else '"…"'
