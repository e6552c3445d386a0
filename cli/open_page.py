"""`run.py open`: print a one-time link to the web page, and open it in a browser."""

from __future__ import annotations

import argparse
import webbrowser

from dashboard.sign_in import LINK_S, SignIn
from store.errors import ConfigError
from store.settings import Settings


def open_page(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the link of the Patina that runs on this home. Raises: ConfigError: nothing was ever started here."""
    path = settings.home / "run" / "settings.json"
    if not path.exists():
        raise ConfigError(f"nothing was started with the home {settings.home} yet")
    running = Settings.load(path)
    link = f"{running.gateway_url}/dashboard/sign-in?token={SignIn(running.sign_in_folder).make_link()}"
    print(link)
    print(f"It signs you in once, within {LINK_S / 60:.0f} minutes.")
    if arguments.browser:
        webbrowser.open(link)
    return 0
