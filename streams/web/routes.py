"""Addresses, and how answers are written: each as a page for people and under /api as JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import structlog
from aiohttp import ClientSession, web
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streams.errors import SteadfaustError
from streams.units import MIB
from streams.web.access import Access
from streams.web.answers import HealthAnswer
from streams.web.handler_routes import handler_routes
from streams.web.letter_routes import jobs_of, letter_routes
from streams.web.lookup import browse, look_up, tables
from streams.web.metrics import WorkerMetrics
from streams.web.overview import overview, readiness
from streams.web.owner import ASKED_BY, Refusal, ask_owner
from streams.web.patience import patience_of, patiently
from streams.web.saga_routes import list_answer, saga_routes, shown_answer
from streams.web.search_routes import search_routes
from streams.web.view import Problem, WorkerView

log = structlog.get_logger(__name__)

#: Bytes of what may be asked for: an edited message is the largest.
MOST_ASKED = 4 * MIB

_VIEW: web.AppKey[WorkerView] = web.AppKey("view")
_ACCESS = web.AppKey("access", Access)
_METRICS = web.AppKey("metrics", WorkerMetrics)
_SESSION = web.AppKey("session", ClientSession)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_encode = msgspec.json.Encoder().encode
_templates = Environment(
    loader=PackageLoader("streams.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters["json"] = lambda value: _encode(value).decode()
_templates.filters["pretty"] = lambda value: msgspec.json.format(_encode(value)).decode()

Answer = Callable[[web.Request], Awaitable[msgspec.Struct]]


class Page(NamedTuple):
    """An answer, with the address and template of its page and the address of its JSON."""

    path: str
    answer: Answer
    template: str
    json: str


async def _worker(request: web.Request) -> msgspec.Struct:
    return overview(request.app[_VIEW])


async def _tables(request: web.Request) -> msgspec.Struct:
    return tables(request.app[_VIEW])


async def _table(request: web.Request) -> msgspec.Struct:
    return browse(request.app[_VIEW], request.match_info["table"], request.query)


async def _rows(request: web.Request) -> msgspec.Struct:
    view = request.app[_VIEW]
    return await look_up(
        view,
        request.match_info["table"],
        request.query,
        asked_by=request.headers.get(ASKED_BY),
        ask=partial(ask_owner, request.app[_SESSION], asked_by=view.url),
    )


PAGES = (
    Page("/", _worker, "worker.html", "/api/worker"),
    Page("/tables", _tables, "tables.html", "/api/tables"),
    Page("/tables/{table}", _table, "table.html", "/api/tables/{table}"),
    Page("/tables/{table}/rows", _rows, "rows.html", "/api/tables/{table}/rows"),
    Page("/sagas", list_answer(_VIEW, _SESSION), "sagas.html", "/api/sagas"),
    Page("/sagas/{saga}", shown_answer(_VIEW, _SESSION), "saga.html", "/api/sagas/{saga}"),
)


def routes() -> list[web.RouteDef]:
    """Every address that is served. All are only read, except for operations on dead letters,
    handlers and sagas.
    """
    defined = [
        web.get("/health/live", _live),
        web.get("/health/ready", _ready),
        web.get("/metrics", _metrics),
    ]
    for page in PAGES:
        defined.append(web.get(page.path, partial(_as_page, page)))
        defined.append(web.get(page.json, partial(_as_json, page.answer)))
    return [
        *defined,
        *letter_routes(_VIEW, _SESSION, _as_json),
        *handler_routes(_VIEW, _SESSION, _as_json),
        *saga_routes(_VIEW, _SESSION, _as_json),
        *search_routes(_VIEW, _SESSION, _as_json, _page),
    ]


def application(view: WorkerView, access: Access = Access()) -> web.Application:
    """The pages of one worker, to be served on a loopback address, and on others to who may ask."""
    app = web.Application(middlewares=[_guarded], client_max_size=MOST_ASKED)
    app[_VIEW] = view
    app[_ACCESS] = access
    app[_METRICS] = WorkerMetrics(view)
    app.cleanup_ctx.append(_session)
    app.cleanup_ctx.append(_sampling)
    app.cleanup_ctx.append(partial(jobs_of, _VIEW, _SESSION))
    app.add_routes(routes())
    return app


async def _session(app: web.Application) -> AsyncIterator[None]:
    # No proxy: the other workers are here, or near. Nobody but them is asked, so all are shown the token.
    async with ClientSession(trust_env=False, headers=app[_ACCESS].headers) as session:
        app[_SESSION] = session
        yield


async def _sampling(app: web.Application) -> AsyncIterator[None]:
    async with app[_METRICS].sampling():
        yield


async def _metrics(request: web.Request) -> web.Response:
    metrics = request.app[_METRICS]
    return web.Response(body=metrics.scrape(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _live(request: web.Request) -> web.Response:
    del request  # that there is an answer is the answer
    return _json(HealthAnswer(status="live"))


async def _ready(request: web.Request) -> web.Response:
    health = readiness(request.app[_VIEW])
    return _json(health, status=503 if health.reasons else 200)


async def _as_json(answer: Answer, request: web.Request) -> web.Response:
    return _json(await answer(request))


async def _as_page(page: Page, request: web.Request) -> web.Response:
    return _page(page.template, request, answer=await page.answer(request))


@web.middleware
async def _guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Nothing for whoever may not ask; every error as JSON or as a page, like the answer it stands for."""
    try:
        request.app[_ACCESS].check(request)
        # Nothing is done before a question has its answer, so that all of it can be asked again.
        most = request.app[_VIEW].patience if ASKED_BY not in request.headers else 0.0  # the asker waits
        patience = patience_of(request.headers, most)
        response = await patiently(lambda: handler(request), patience)
    except Problem as problem:
        response = _refuse(request, problem)
        if problem.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
    except web.HTTPException as error:
        response = _refuse(
            request, Problem(error.status, error.reason.lower().replace(" ", "_"), error.reason)
        )
        response.headers.update({name: error.headers[name] for name in ("Allow",) if name in error.headers})
    except SteadfaustError as error:
        response = _refuse(request, Problem(503, "not_now", str(error)))
    except Exception as error:
        log.exception("page_failed", path=request.path)
        response = _refuse(request, Problem(500, "failed", f"{type(error).__name__}: see this worker's log"))
    response.headers.update(_HEADERS)
    return response


def _refuse(request: web.Request, problem: Problem) -> web.Response:
    if request.path.startswith(("/api/", "/health/", "/metrics")):
        return _json(Refusal(problem.error, problem.detail), status=problem.status)
    return _page("problem.html", request, status=problem.status, problem=problem)


def _json(answer: msgspec.Struct, *, status: int = 200) -> web.Response:
    return web.Response(body=_encode(answer), content_type="application/json", status=status)


def _page(template: str, request: web.Request, *, status: int = 200, **values: Any) -> web.Response:
    text = _templates.get_template(template).render(query=request.query, path=request.path, **values)
    return web.Response(text=text, content_type="text/html", status=status)
