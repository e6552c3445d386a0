"""The routes of the page: sign-in, pages, and the actions that a form can take.

Rules: a page shows only what its viewer may see; every action is a POST with a cookie and the form's token; all text is escaped by the
template engine, and the content policy forbids scripts that are not ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dashboard import views
from dashboard.chat import ChatPanel, score_reply
from dashboard.gateway import Gateway
from dashboard.sign_in import COOKIE, COOKIE_S, SignIn, form_token
from dashboard.views import StatusCache, Viewer
from store.catch_up import read_recorder_state
from store.errors import RecordError, UpstreamError
from store.heartbeats import LOOK_S, HeartbeatWriter
from store.journal import EntryKind, JournalWriter
from store.keys import KeyFile, Keyring, NamedKey
from store.lifecycle import may_teach
from store.policies import group_of, policies_of, policy_name
from store.record import Record
from store.record_handle import RecordHandle
from store.releases import sentence
from store.settings import Settings
from store.texts import clip, strip_controls
from store.training_plan import expectation
from store.training_schedule import MANUAL
from store.values import AdapterState, Feedback, Selection, WishState, may_hold_hint, new_feedback_id
from store.version import COMMAND, VERSION
from telemetry.record_metrics import render_metrics

log = logging.getLogger(__name__)

PREFIX = "/dashboard"
#: Names the policy that an owner looks at.
POLICY_COOKIE = "patina_shown_policy"
_HERE = Path(__file__).parent
#: Longest form (bytes), and longest text that a person may send with feedback.
_MAX_FORM, _MAX_TEXT = 1 << 16, 4_000
_JOURNAL_WAIT_S = 10.0
_PER_PAGE, _MAX_PER_PAGE, _MAX_DIGITS = 20, 100, 9
#: Share of the new conversations that a version serves which a person tries.
TRIAL_SHARE = 0.5
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

#: What a row that was damaged raises, where no page expects it.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, TemplateError, TypeError, ValueError)

Page = Callable[[Request, Viewer], Awaitable[Response]]


class NoSignIn(Exception):
    """The request has no valid cookie and no valid key."""


class Dashboard:
    """The pages and their actions.

    Args:
        keys: the keys that may sign in.
        journal: where explicit feedback is appended.
        gateway_url: base URL of the gateway, for the chat panel.
        first_key: the owner's key, which the chat panel uses; "": none is needed.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        record: RecordHandle,
        keys: Keyring,
        sign_in: SignIn,
        journal: JournalWriter,
        gateway_url: str,
        first_key: str,
    ) -> None:
        self._settings = settings
        self._record = record
        self._keys = keys
        self._sign_in = sign_in
        self._journal = journal
        self._beats = HeartbeatWriter("dashboard")
        self._status = StatusCache()
        self._gateway = Gateway(gateway_url, first_key)
        self._chat = ChatPanel(self._gateway, settings.policy, self._version_of_turn)
        self._pages = _templates()

    def routes(self) -> list[Route | Mount]:
        """Return the routes, without the prefix that `create_app` adds for pages."""
        get: dict[str, Page] = {
            "": self._overview,
            "/versions": self._versions,
            "/versions/{number:int}": self._version,
            "/unused": self._unused,
            "/conversations": self._conversations,
            "/turns/{turn_id}": self._turn,
            "/turns/{turn_id}/tokens": self._tokens,
            "/turns/{turn_id}/forget": self._preview_forget,
            "/forgotten": self._forgotten,
            "/steps": self._steps,
            "/people": self._people,
            "/settings": self._settings_page,
            "/live": self._live,
            "/running": self._running,
            "/try": self._try,
        }
        post: dict[str, Page] = {
            "/rollback": self._rollback,
            "/pin": self._pin,
            "/wishes": self._remove_wish,
            "/canary": self._try_version,
            "/training": self._training,
            "/policy": self._choose_policy,
            "/turns/{turn_id}/feedback": self._feedback,
            "/turns/{turn_id}/forget": self._forget,
            "/try": self._try_post,
            "/sign-out": self._sign_out,
        }
        found: list[Route | Mount] = [
            Route(PREFIX + "/", self._page(self._overview), methods=["GET"]),
            Route(PREFIX + "/sign-in", self._sign_in_page, methods=["GET", "POST"]),
            Mount(PREFIX + "/static", StaticFiles(directory=_HERE / "static")),
        ]
        found += [Route(PREFIX + path, self._page(page), methods=["GET"]) for path, page in get.items()]
        found += [Route(PREFIX + path, self._action(page), methods=["POST"]) for path, page in post.items()]
        # The path that users of CLaaS know. The page's cookie is not sent there.
        found.append(Route("/v1/dashboard", _lead_to_steps, methods=["GET"]))
        found.append(Route("/metrics", self._metrics, methods=["GET"]))
        return found

    async def beat(self) -> None:
        """Write heartbeats; keep the journal's segment in order."""
        while True:
            await self._write_heartbeat("running")
            self._journal.maintain()
            await asyncio.sleep(LOOK_S)

    async def _write_heartbeat(self, state: str) -> None:
        detail = {"journal": self._journal.state()}
        with contextlib.suppress(RecordError):  # the pages show what is wrong; the next heartbeat comes soon
            await self._beats.write(await self._record.get(), state, detail)

    async def close(self) -> None:
        if self._record.record is not None:
            await self._write_heartbeat("stopped")
        await self._journal.close()
        await self._record.close()
        await self._gateway.close()

    # ---- who looks

    def _signed_in(self, request: Request) -> NamedKey | None:
        """Return the key that a browser signed in with; where no key is needed, each browser is the owner."""
        cookie = request.cookies.get(COOKIE, "")
        digest = self._sign_in.key_of(cookie)
        if digest is not None and (key := self._keys.of_digest(digest)) is not None:
            return key
        return self._keys.first if cookie and self._keys.is_open else None

    def _viewer(self, request: Request) -> Viewer:
        """Return who looks: a browser that signed in, or a program with a key. Raises: NoSignIn."""
        if (key := self._signed_in(request)) is not None:
            return self._viewer_of(key, request, request.cookies[COOKIE])
        found = (
            None
            if self._keys.is_open
            else next(filter(None, map(self._keys.holder, _keys_of(request))), None)
        )
        if found is None:
            raise NoSignIn
        return self._viewer_of(found, request, "")

    def _viewer_of(self, key: NamedKey, request: Request, cookie: str) -> Viewer:
        base = self._settings.policy
        policy = policy_name(base, key.adapter)
        if key.is_owner and group_of(base, chosen := request.cookies.get(POLICY_COOKIE, policy)) is not None:
            policy = chosen
        return Viewer(
            name=key.name,
            key_name=None if key.is_owner else key.name,
            policy=policy,
            has_own_policy=key.adapter == key.name,
            csrf=form_token(cookie) if cookie else "",
        )

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                viewer = self._viewer(request)
            except NoSignIn:
                if not self._keys.is_open:
                    if "hx-request" in request.headers:  # a part of a page: all of it is loaded anew
                        return Response(status_code=204, headers={"hx-refresh": "true"})
                    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                    return RedirectResponse(f"{PREFIX}/sign-in?{urlencode({'next': target})}", 303)
                cookie = secrets.token_urlsafe(32)
                viewer = self._viewer_of(self._keys.first, request, cookie)
                return _with_cookie(request, await self._guarded(page, request, viewer), cookie)
            return await self._guarded(page, request, viewer)

        return endpoint

    def _action(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if (key := self._signed_in(request)) is None:
                raise HTTPException(403, "Sign in first.")
            viewer = self._viewer_of(key, request, request.cookies[COOKIE])
            form = await _form(request)
            if not secrets.compare_digest(form.get("csrf", "").encode(), viewer.csrf.encode()):
                raise HTTPException(403, "This form is not of this page. Reload the page and try again.")
            request.state.form = form
            return await self._guarded(page, request, viewer)

        return endpoint

    async def _guarded(self, page: Page, request: Request, viewer: Viewer) -> Response:
        try:
            return await page(request, viewer)
        except RecordError as exc:
            return self._render("problem.html", viewer, 503, title="The record cannot be read", text=str(exc))
        except _DAMAGE:
            log.exception("the page %s cannot be made", request.url.path)
            text = "Something in the record that it shows is damaged. `logs/dashboard.log` has the details."
            return self._render("problem.html", viewer, 500, title="This page cannot be shown", text=text)

    def show_problem(self, request: Request, status: int, text: str) -> Response:
        """Return a page about a request that cannot be served, with the sections of who is signed in."""
        try:
            viewer = self._viewer(request)
        except NoSignIn:
            viewer = None
        title = HTTPStatus(status).phrase
        text = "There is no such page." if (status, text) == (404, title) else text
        return self._render("problem.html", viewer, status, title=title, text=text)

    def _begin_session(self, request: Request, key: NamedKey, response: Response) -> Response:
        try:
            return _with_cookie(request, response, self._sign_in.begin(key.digest))
        except OSError as exc:
            raise HTTPException(503, f"The sign-in cannot be kept: {exc.strerror or exc}.") from exc

    async def _sign_in_page(self, request: Request) -> Response:
        target = request.query_params.get("next", PREFIX)
        if not target.startswith(PREFIX):
            target = PREFIX
        problem, status = "", 200
        if token := request.query_params.get("token"):
            if self._sign_in.use_link(token):
                # A cookie with SameSite=Strict is not sent along a redirect that another site began: this page leads on by itself.
                return self._begin_session(
                    request, self._keys.first, self._render("signed_in.html", None, target=target)
                )
            if self._signed_in(request) == self._keys.first:
                return RedirectResponse(target, 303)
            problem = f"This link was used before or is too old. `{COMMAND} open` makes a new one."
            status = 403
        elif request.method == "POST":
            if (
                request.headers.get("sec-fetch-site") == "cross-site"
            ):  # it would sign the visitor in as someone else
                raise HTTPException(403, "This form is not of this page. Reload the page and try again.")
            holder = self._keys.holder((await _form(request)).get("key", "").strip().encode())
            if holder is not None:
                return self._begin_session(request, holder, RedirectResponse(target, 303))
            problem, status = "This is not a key of this Patina.", 403
        return self._render("sign_in.html", None, status, problem=problem)

    async def _sign_out(self, request: Request, viewer: Viewer) -> Response:
        self._sign_in.end(request.cookies[COOKIE])
        response = RedirectResponse(f"{PREFIX}/sign-in", 303)
        response.delete_cookie(COOKIE, path=PREFIX)
        return response

    # ---- pages

    def _render(
        self, template: str, viewer: Viewer | None, status_code: int = 200, **values: Any
    ) -> Response:
        text = self._pages.get_template(template).render(
            viewer=viewer, prefix=PREFIX, patina_version=VERSION, now=time.time(), **values
        )
        return HTMLResponse(text, status_code, headers=_HEADERS)

    async def _overview(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        found = await views.overview(record, viewer)
        # htmx asks for the changing part alone.
        name = "overview_part.html" if "hx-request" in request.headers else "overview.html"
        step = await self._step_of(record, viewer)
        return self._render(
            name, viewer, section="overview", step=step, expectation=self._expectation(), **found
        )

    def _expectation(self) -> str:
        """Return when a version is trained, in a sentence; "" where a person starts it, or nothing is trained here."""
        return "" if self._settings.schedule.mode == MANUAL else expectation(self._settings)

    async def _versions(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        found = await views.versions(record, viewer)
        return self._render("versions.html", viewer, section="versions", **found)

    async def _version(self, request: Request, viewer: Viewer) -> Response:
        number = request.path_params["number"]
        found = None
        if number < 10**_MAX_DIGITS:
            found = await views.version(await self._record.get(), viewer, number)
        if found is None:
            raise HTTPException(404, f"There is no version {str(number)[:20]}.")
        return self._render("version.html", viewer, section="versions", **found)

    async def _unused(self, request: Request, viewer: Viewer) -> Response:
        found = await views.unused(await self._record.get(), viewer, _number(request, "before"))
        return self._render("unused.html", viewer, section="unused", **found)

    async def _conversations(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        if (session_id := request.query_params.get("session")) is not None:
            one = await views.conversation(record, viewer, session_id)
            if one is None:
                raise HTTPException(404, "There is no such conversation.")
            return self._render("conversation.html", viewer, section="conversations", **one)
        found = await views.conversations(record, viewer, _number(request, "before"))
        return self._render("conversations.html", viewer, section="conversations", **found)

    async def _turn(self, request: Request, viewer: Viewer) -> Response:
        found = await views.turn(await self._record.get(), viewer, request.path_params["turn_id"])
        if found is None:
            raise HTTPException(404, "There is no such turn.")
        return self._render(
            "turn.html", viewer, section="conversations", noted=request.query_params.get("noted"), **found
        )

    async def _tokens(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        found = await views.turn(record, viewer, request.path_params["turn_id"])
        if found is None:
            raise HTTPException(404, "There is no such turn.")
        story, scored, problem = found["story"], {}, ""
        try:
            scored = await score_reply(self._gateway, viewer.policy, story)
        except (UpstreamError, ValueError) as exc:
            problem = str(exc)
        ids, logprobs = await record.turn_tokens(story["turn_id"])
        rows = views.token_rows(ids, logprobs, scored)
        return self._render(
            "tokens.html", viewer, section="conversations", story=story, rows=rows, scored=scored, problem=problem,
            is_part="hx-request" in request.headers,
        )  # fmt: skip

    async def _steps(self, request: Request, viewer: Viewer) -> Response:
        page = int(_number(request, "page") or 1)
        per_page = min(max(int(_number(request, "per_page") or _PER_PAGE), 1), _MAX_PER_PAGE)
        record = await self._record.get()
        found = await views.steps(record, viewer, page, per_page)
        step = await self._step_of(record, viewer) if found["page"] == 1 else None
        return self._render("steps.html", viewer, section="steps", step=step, **found)

    async def _running(self, request: Request, viewer: Viewer) -> Response:
        step = await self._step_of(await self._record.get(), viewer)
        return self._render("running_part.html", viewer, step=step)

    async def _step_of(self, record: Record, viewer: Viewer) -> views.Progress | None:
        """Return the step of the viewer's policy that runs."""
        beats, _ = await views.heartbeats(record)
        step = await views.step_progress(record, beats, time.time())
        return step if step is not None and step.policy == viewer.policy else None

    async def _people(self, request: Request, viewer: Viewer) -> Response:
        base = self._settings.policy
        keys = KeyFile(self._settings.keys_file).read() if viewer.is_owner else ()
        live = await views.live_versions(await self._record.get())
        policies = policies_of(base, {base, *live, *(policy_name(base, key.adapter) for key in keys)})
        rows = [(key, policy_name(base, key.adapter)) for key in keys]
        return self._render(
            "people.html", viewer, section="people", keys=rows, live=live, policies=policies, base=base
        )

    async def _settings_page(self, request: Request, viewer: Viewer) -> Response:
        _require_owner(viewer)
        rows = views.settings_rows(self._settings)
        return self._render("settings.html", viewer, section="settings", rows=rows)

    async def _live(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        # Before the counts, which take long.
        beats, damaged = await views.heartbeats(record) if viewer.is_owner else ([], [])
        now = time.time()
        processes = views.processes(beats, now)
        work = views.work_now(beats, now) if viewer.is_owner else []
        step = await views.step_progress(record, beats, now)
        status = await self._status.get(record, viewer)
        name = "live_part.html" if "hx-request" in request.headers else "live.html"
        return self._render(
            name,
            viewer,
            section="live",
            processes=processes,
            damaged=damaged,
            work=work,
            step=step,
            status=status,
        )

    async def _metrics(self, request: Request) -> Response:
        """Answer Prometheus. Programs get a status without a page."""
        plain = {"content-type": CONTENT_TYPE_LATEST, "cache-control": "no-store"}
        if not (self._settings.metrics_public or self._keys.is_open):
            try:
                viewer = self._viewer(request)
            except NoSignIn:
                return Response(
                    "Send an owner's key as a Bearer token, or start Patina with --set metrics_public=on.\n",
                    401,
                    {"www-authenticate": "Bearer"},
                    "text/plain",
                )
            if not viewer.is_owner:
                return Response("Only an owner's key may read the metrics.\n", 403, media_type="text/plain")
        try:
            record = await self._record.get()
            status, learning = await self._status.of_owner(record), await record.learning_metrics()
            recorder = read_recorder_state(self._settings.journal_folder)
            page = render_metrics(status, learning, recorder, [self._settings.metrics_file], time.time())
        except RecordError as exc:
            return Response(f"{exc}\n", 503, media_type="text/plain")
        except _DAMAGE:
            log.exception("the metrics cannot be made")
            return Response("Something in the record is damaged.\n", 500, media_type="text/plain")
        return Response(page, headers=plain)

    # ---- actions

    async def _rollback(self, request: Request, viewer: Viewer) -> Response:
        number = _number_of(request, viewer, "version")
        record = await self._record.get()
        try:
            await record.rollback(viewer.policy, number, actor="dashboard")
        except RecordError as exc:
            return self._render("problem.html", viewer, 409, title="It was not rolled back", text=str(exc))
        return RedirectResponse(f"{PREFIX}/versions", 303)

    async def _pin(self, request: Request, viewer: Viewer) -> Response:
        number = _number_of(request, viewer, "version")
        record = await self._record.get()
        try:
            await record.pin(viewer.policy, number, stays=request.state.form.get("stays") == "1")
        except RecordError as exc:
            return self._render("problem.html", viewer, 409, title="It was not pinned", text=str(exc))
        return RedirectResponse(f"{PREFIX}/versions/{number}", 303)

    async def _remove_wish(self, request: Request, viewer: Viewer) -> Response:
        number = _number_of(request, viewer, "wish")
        record = await self._record.get()
        if number not in {wish.wish_id for wish in await record.wishes(viewer.policy)}:
            raise HTTPException(404, "There is no such wish.")
        await record.change_wish(number, state=WishState.WITHDRAWN)
        return RedirectResponse(PREFIX, 303)

    async def _try_version(self, request: Request, viewer: Viewer) -> Response:
        number = _number_of(request, viewer, "version")
        record = await self._record.get()
        share = self._settings.canary_share or TRIAL_SHARE
        try:
            await record.try_version(viewer.policy, number, share=share)
        except RecordError as exc:
            return self._render("problem.html", viewer, 409, title="It is not tried", text=str(exc))
        return RedirectResponse(f"{PREFIX}/versions/{number}", 303)

    async def _choose_policy(self, request: Request, viewer: Viewer) -> Response:
        _require_owner(viewer)
        chosen = request.state.form.get("policy", "")
        if group_of(self._settings.policy, chosen) is None:
            raise HTTPException(400, "There is no such policy.")
        response = RedirectResponse(PREFIX, 303)
        response.set_cookie(POLICY_COOKIE, chosen, httponly=True, samesite="strict", path=PREFIX)
        return response

    async def _training(self, request: Request, viewer: Viewer) -> Response:
        _require_change(viewer)
        record = await self._record.get()
        if request.state.form.get("now") == "1":
            _require_owner(viewer)
            await record.ask_to_train()
        else:
            policy = None if viewer.is_owner else viewer.policy
            await record.set_paused(request.state.form.get("paused") == "1", policy=policy)
        return RedirectResponse(PREFIX, 303)

    async def _feedback(self, request: Request, viewer: Viewer) -> Response:
        record, turn_id = await self._own_turn(request, viewer)
        form = request.state.form
        text = form.get("text", "").strip()
        score = {"up": 1.0, "down": -1.0}.get(form.get("thumbs", ""))
        if score is None and not text:
            raise HTTPException(400, "Choose a thumb or write what was wrong.")
        if len(text) > _MAX_TEXT:
            raise HTTPException(413, f"The text is longer than {_MAX_TEXT} characters.")
        fate = (await record.fates([turn_id])).get(turn_id)
        has_words = may_hold_hint(text, score)
        teaches = fate is None or may_teach(fate.stage, fate.drop_reason, has_words=has_words)
        identity = new_feedback_id()
        feedback = Feedback(
            feedback_id=identity,
            turn_id=turn_id,
            score=score,
            text=text,
            idempotency_key=f"{viewer.name}:{identity}",
            created_at=time.time(),
        )
        try:
            await self._journal.append_written(EntryKind.FEEDBACK, orjson.dumps(feedback), _JOURNAL_WAIT_S)
        except OSError as exc:
            raise RecordError(f"the feedback is not kept: {exc}") from exc
        noted = "noted" if teaches else "noted=untrained"
        return RedirectResponse(f"{PREFIX}/turns/{quote(turn_id)}?{noted}", 303)

    async def _own_turn(self, request: Request, viewer: Viewer) -> tuple[Record, str]:
        """Return the record and the id of the turn in the path. Raises: HTTPException: there is none of this viewer."""
        record = await self._record.get()
        turn_id = request.path_params["turn_id"]
        key_name = await record.key_of_turn(turn_id)
        if key_name is None or (not viewer.is_owner and key_name != viewer.key_name):
            raise HTTPException(404, "There is no such turn.")
        return record, turn_id

    async def _preview_forget(self, request: Request, viewer: Viewer) -> Response:
        record, turn_id = await self._own_turn(request, viewer)
        closure = await record.find_closure(Selection(turn=turn_id))
        return self._render("forget.html", viewer, section="conversations", turn_id=turn_id, closure=closure)

    async def _forget(self, request: Request, viewer: Viewer) -> Response:
        record, turn_id = await self._own_turn(request, viewer)
        await record.ask_to_forget(Selection(turn=turn_id), key_name=viewer.name)
        return RedirectResponse(f"{PREFIX}/forgotten", 303)

    async def _forgotten(self, request: Request, viewer: Viewer) -> Response:
        record = await self._record.get()
        jobs = await record.forget_jobs(None if viewer.is_owner else viewer.name)
        name = "forgotten_part.html" if "hx-request" in request.headers else "forgotten.html"
        return self._render(name, viewer, section="conversations", jobs=jobs)

    # ---- the chat panel

    async def _try(self, request: Request, viewer: Viewer) -> Response:
        _require_owner(viewer)
        return await self._render_chat(viewer)

    async def _render_chat(
        self, viewer: Viewer, problem: str = "", *, status_code: int = 200, text: str = ""
    ) -> Response:
        live, numbers = await self._chat_versions(viewer)
        others = [(str(number), f"version {number}") for number in numbers if number != live]
        return self._render(
            "try.html", viewer, status_code, section="try", chat=self._chat, problem=problem, text=text, live=live, others=others,
            expectation=self._expectation(), suggestions=self._chat.suggestions(),
        )  # fmt: skip

    async def _chat_versions(self, viewer: Viewer) -> tuple[int, list[int]]:
        """Return the live version, and the published ones, newest first."""
        # The owner may look at another policy; the panel talks to this home's.
        found = await views.versions(await self._record.get(), replace(viewer, policy=self._settings.policy))
        return found["live"], [
            one.version for one in found["versions"] if one.state is AdapterState.PUBLISHED
        ]

    async def _version_of_turn(self, turn_id: str) -> str:
        story = await (await self._record.get()).story(turn_id)
        return f"{story['policy']}@{story['adapter_version']}" if story else ""

    async def _try_post(self, request: Request, viewer: Viewer) -> Response:
        _require_owner(viewer)
        form = request.state.form
        if form.get("action") == "clear":
            self._chat.clear()
            return RedirectResponse(f"{PREFIX}/try", 303)
        # A browser counts a line's end as one character and sends two.
        text = (form.get("suggestion") or form.get("text", "")).replace("\r\n", "\n").strip()
        version, beside = form.get("version", ""), form.get("beside", "0")
        _, numbers = await self._chat_versions(viewer)
        if problem := self._chat.refusal(text, version, beside, {"0", *map(str, numbers)}):
            return await self._render_chat(viewer, problem, status_code=400, text=text)
        if problem := await self._chat.send(text, version, beside):
            return await self._render_chat(viewer, problem, status_code=502, text=text)
        return RedirectResponse(f"{PREFIX}/try#newest", 303)


def create_app(dashboard: Dashboard) -> Starlette:
    """Return the ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        beats = asyncio.create_task(dashboard.beat())
        yield
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)
        await dashboard.close()

    async def on_http_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        path = request.url.path
        if (
            exc.status_code == 404
            and request.method == "GET"
            and path.startswith(PREFIX + "/")
            and path.endswith("/")
        ):
            return RedirectResponse(path.rstrip("/"), 303)
        return dashboard.show_problem(request, exc.status_code, exc.detail)

    # The gateway calls this port by its address. A web page that rebinds its own name to this machine sends its own name.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)
    app = Starlette(
        routes=dashboard.routes(),
        lifespan=lifespan,
        exception_handlers={HTTPException: on_http_error},
        middleware=[hosts],
    )
    # A redirect would name the address of this process, which is not the gateway's.
    app.router.redirect_slashes = False
    return app


async def _lead_to_steps(request: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/steps" + (f"?{request.url.query}" if request.url.query else ""), 303)


def _with_cookie(request: Request, response: Response, cookie: str) -> Response:
    response.set_cookie(
        COOKIE, cookie, max_age=int(COOKIE_S), httponly=True, samesite="strict", path=PREFIX,
        secure=request.headers.get("x-forwarded-proto") == "https",  # a reverse proxy speaks TLS
    )  # fmt: skip
    return response


@cache
def _templates() -> Environment:
    """Return the templates, all compiled: a first view does not wait for that."""
    found = Environment(
        loader=PackageLoader("dashboard"), autoescape=True, undefined=StrictUndefined, finalize=_visible, trim_blocks=True, lstrip_blocks=True,
        auto_reload=False,
    )  # fmt: skip
    found.globals["program"] = COMMAND
    found.filters |= {
        "when": _when, "ago": _ago, "clip": clip, "cut": _cut, "words": views.message_text, "path": _path, "ticks": _ticks,
        "release": sentence, "measure": views.measure_text,
    }  # fmt: skip
    for name in found.list_templates():
        found.get_template(name)
    return found


def _require_owner(viewer: Viewer) -> None:
    if not viewer.is_owner:
        raise HTTPException(403, "Only the owner's key opens this page.")


def _require_change(viewer: Viewer) -> None:
    if not viewer.can_change:
        raise HTTPException(403, "Other keys train this policy too: only the owner's key changes it.")


def _number_of(request: Request, viewer: Viewer, name: str) -> int:
    """Return the number in a field of a form. Raises: HTTPException: the viewer may not change anything, or it is no number."""
    _require_change(viewer)
    number = request.state.form.get(name, "")
    if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
        raise HTTPException(400, f"{name} is a number.")
    return int(number)


def _keys_of(request: Request) -> list[bytes]:
    """Return the keys that a program may have sent, ours first: beside it, the Bearer token may be for the backend."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key.encode() for key in (request.headers.get("x-patina-key", "").strip(), bearer) if key]


async def _form(request: Request) -> dict[str, str]:
    """Return a form's fields. Raises: HTTPException: it is too large or none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM:
            raise HTTPException(413, "The form is too large.")
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "A form is expected.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _number(request: Request, name: str) -> float | None:
    try:
        value = float(request.query_params[name])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _visible(value: Any) -> Any:
    """Remove control characters, which could hide or reorder text."""
    return strip_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _when(at: float | None) -> str:
    return "" if at is None else views.format_time(at)


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _cut(text: str, length: int) -> str:
    """Return the text's beginning, its lines kept."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _ticks(text: str) -> Markup:
    """Return one of our sentences with the parts between backquotes as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(text.split("`"))
    )


def _path(text: str) -> str:
    return quote(text, safe="")
