"""Files of the API that a browser downloads through the page: a student's tar, a batch's table.

Knows paths and streaming: nothing is copied to this machine's disk, and the API's own address need not be reachable
from the browser. Does not know Gradio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ui.client import ApiProblem, StillhouseClient, segment

PREFIX = "/files"
_PASSED_ON = ("content-type", "content-length", "content-disposition")


def model_url(model_id: str) -> str:
    return f"{PREFIX}/models/{model_id}.tar"


def batch_url(batch_id: str, format: str) -> str:
    return f"{PREFIX}/batches/{batch_id}.{format}"


def routes(api: StillhouseClient) -> list[Route]:
    """For the page's server, beside what Gradio serves."""

    def model(request: Request) -> Response:
        return _pass_on(api, f"/v1/models/{segment(request.path_params['id'])}/archive")

    def batch(request: Request) -> Response:
        wanted = "csv" if request.path_params["format"] == "csv" else "jsonl"
        return _pass_on(api, f"/v1/batches/{segment(request.path_params['id'])}/export?format={wanted}")

    return [
        Route(PREFIX + "/models/{id}.tar", _told(model)),
        Route(PREFIX + "/batches/{id}.{format}", _told(batch)),
    ]


def _told(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """`answer`, with a refusal of the API as plain text."""

    def handler(request: Request) -> Response:
        try:
            return answer(request)
        except ApiProblem as problem:
            return PlainTextResponse(problem.detail, problem.status or 503)

    return handler


def _pass_on(api: StillhouseClient, path: str) -> Response:
    stack = ExitStack()
    answer = stack.enter_context(api.download(path))

    def pieces() -> Iterator[bytes]:
        with stack:
            yield from answer.iter_raw()

    headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
    return StreamingResponse(pieces(), headers=headers)
