"""Errors of the endpoints that read and change the record, answered in one way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Send

from proxy.adapters import AdapterBusy
from proxy.asgi import BodyTooLarge, ClientDisconnected, send_error
from store.errors import RecordError
from wire.api_translation import Untranslatable

log = logging.getLogger(__name__)


@asynccontextmanager
async def answering_errors(
    send: Send, what: str, failures: tuple[type[Exception], ...] = (RecordError,)
) -> AsyncIterator[None]:
    """Answer what fails inside the block; nothing was sent before.

    Args:
        what: the sentence for the log, when the record fails.
        failures: errors that mean that the record cannot be used.
    """
    try:
        yield
    except ClientDisconnected:
        return
    except BodyTooLarge:
        await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
    except Untranslatable as exc:
        await send_error(send, exc.status, str(exc), code=exc.code, param=exc.param)
    except failures as exc:
        log.warning("%s: %s", what, exc)
        await send_error(send, 503, "The record cannot be used now. Retry the request.", kind="server_error")


async def send_busy(send: Send, error: AdapterBusy) -> None:
    """Say that no adapter slot got free."""
    again = (b"retry-after", b"%d" % error.retry_after_s)
    await send_error(send, 503, str(error), kind="server_error", code="overloaded", headers=[again])
