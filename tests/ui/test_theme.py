from __future__ import annotations

import re

from ui.theme import head_html, make_theme


def test_fonts_and_styles_come_from_this_machine() -> None:
    theme = make_theme()
    sources = " ".join([head_html(), *map(str, theme._font_css), *map(str, theme._stylesheets)])
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", sources.replace("http://www.w3.org", "")) == []
    assert "url('static/fonts/IBMPlexSans" in sources


def test_head_has_style_and_script() -> None:
    head = head_html()
    assert head.startswith("<style>")
    assert "window.stillhouse" in head
