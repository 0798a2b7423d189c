from __future__ import annotations

import re
from typing import Any

import pytest

from ui.theme import COPPER, head_html, make_theme


def test_fonts_and_styles_come_from_this_machine() -> None:
    theme = make_theme()
    sources = " ".join([head_html(), *map(str, theme._font_css), *map(str, theme._stylesheets)])
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", sources.replace("http://www.w3.org", "")) == []
    assert "url('static/fonts/IBMPlexSans" in sources


def test_head_has_style_and_script() -> None:
    head = head_html()
    assert head.startswith("<style>")
    assert "window.stillhouse" in head


def colour(theme: Any, name: str) -> str:
    """The hex value of a theme variable, through its references (`*primary_600`)."""
    value = str(getattr(theme, name, None) or getattr(COPPER, name.replace("primary_", "c")))
    return colour(theme, value.removeprefix("*")) if value.startswith("*") else {"white": "#ffffff"}.get(value, value)


def luminance(value: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(value[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", ["", "_dark"])
@pytest.mark.parametrize("state", ["", "_hover"])
@pytest.mark.parametrize("button", ["primary", "cancel"])
def test_words_on_buttons_can_be_read_also_under_the_pointer(button: str, state: str, dark: str) -> None:
    theme = make_theme()
    fill = luminance(colour(theme, f"button_{button}_background_fill{state}{dark}"))
    text = luminance(colour(theme, f"button_{button}_text_color"))
    assert (max(fill, text) + 0.05) / (min(fill, text) + 0.05) >= 4.5
