"""What the server refuses."""

from __future__ import annotations


class Refused(Exception):
    """A request that cannot be served; `status` is HTTP's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
