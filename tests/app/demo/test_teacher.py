"""Where the teacher comes from, with a hub that answers and one that does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.demo.teacher import HUB_ID, PACKAGE, find_teacher
from tests.running_service import free_port


class Hub(BaseHTTPRequestHandler):
    """A hub that knows one model."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == f"/{HUB_ID}/resolve/main/config.json" else 404)
        self.end_headers()


@pytest.fixture
def hub() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def packaged() -> None:
    if find_spec(PACKAGE) is None:
        pytest.skip(f"{PACKAGE} is not installed; the demo installs it when it needs it")


def test_hub_that_answers_is_preferred(hub: str) -> None:
    assert find_teacher(endpoint=hub, offline=False) == HUB_ID


@pytest.mark.usefixtures("packaged")
def test_without_a_hub_the_file_of_the_package_is_taken() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    file = Path(find_teacher(endpoint=nobody, offline=False))
    assert file.suffix == ".gguf"
    assert file.read_bytes()[:4] == b"GGUF"


@pytest.mark.usefixtures("packaged")
def test_offline_asks_nobody(hub: str) -> None:
    assert find_teacher(endpoint=hub, offline=True).endswith(".gguf")
