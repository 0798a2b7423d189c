"""Starts the page: `python -m ui.main`. The UI's only composition root.

Knows the settings and how Gradio is launched. The page needs no internet: fonts and scripts come from this process.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.core.settings import ServiceSettings
from ui import downloads
from ui.client import StillhouseClient, make_http
from ui.layout import build_ui
from ui.plots import plotly_script, preload_html
from ui.theme import head_html, make_theme


def main() -> None:
    """Serves the page until the process is ended."""
    serve(ServiceSettings())


def serve(settings: ServiceSettings, *, block: bool = True) -> gr.Blocks:
    """Serves the page; with `block` False in a thread, until the caller closes what is returned."""
    api = StillhouseClient(make_http(settings.resolved_api_url))
    blocks = build_ui(api)
    blocks.launch(
        server_name=settings.host,
        server_port=settings.ui_port,
        prevent_thread_lock=not block,
        share=False,
        inbrowser=False,
        quiet=True,
        show_error=False,
        ssr_mode=False,
        run_history=False,
        footer_links=[],
        enable_monitoring=False,
        max_file_size=f"{settings.max_upload_mib}mb",
        favicon_path=Path(__file__).with_name("favicon.svg"),
        allowed_paths=[str(plotly_script())],
        theme=make_theme(),
        head=head_html() + preload_html(),
        app_kwargs={"routes": downloads.routes(api)},
    )
    return blocks


if __name__ == "__main__":
    main()
