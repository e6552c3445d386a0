"""Text in one line."""

from __future__ import annotations

#: Characters of a text that has room.
LONG = 160
