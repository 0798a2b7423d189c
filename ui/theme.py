"""The page's colours, type and spacing as a Gradio theme: copper on warm greys, light and dark.

Knows theme variables only; what they cannot say is in style.css. Fonts are those that Gradio ships and serves itself.
"""

from __future__ import annotations

from pathlib import Path

from gradio.themes import Base
from gradio.themes.utils.colors import Color, stone
from gradio.themes.utils.fonts import LocalFont

COPPER = Color(
    name="copper",
    c50="#fdf6f0",
    c100="#f9e7d9",
    c200="#f2ccb0",
    c300="#e8ab82",
    c400="#db8a58",
    c500="#c2703d",
    c600="#a4582a",
    c700="#854622",
    c800="#69391f",
    c900="#52301d",
    c950="#2d190f",
)


def make_theme() -> Base:
    """Weights are 400 and 700 because Gradio's semi-bold files lack most letters; CSS that asks for 600 gets 700."""
    theme = Base(
        primary_hue=COPPER,
        secondary_hue=COPPER,
        neutral_hue=stone,
        radius_size="md",
        text_size="md",
        font=(LocalFont("IBM Plex Sans", weights=(400, 700)), "ui-sans-serif", "system-ui", "sans-serif"),
        font_mono=(LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "Consolas", "monospace"),
    )
    return theme.set(
        body_background_fill="#faf9f7",
        body_background_fill_dark="#171412",
        background_fill_primary="white",
        background_fill_primary_dark="#211d1a",
        background_fill_secondary="#f5f3f0",
        background_fill_secondary_dark="#1b1815",
        block_background_fill="white",
        block_background_fill_dark="#211d1a",
        block_border_width="0px",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        border_color_primary="#e4dfd9",
        border_color_primary_dark="#3b3530",
        input_background_fill="#fdfcfb",
        input_background_fill_dark="#1a1714",
        input_border_color="#d8d2ca",
        input_border_color_dark="#453e38",
        input_border_width="1px",
        block_info_text_color="#6d665f",
        block_info_text_color_dark="#a39b93",
        body_text_color="#292420",
        body_text_color_dark="#ece7e1",
        body_text_color_subdued="#6d665f",
        body_text_color_subdued_dark="#a39b93",
        block_title_text_weight="600",
        block_title_text_color="#292420",
        block_title_text_color_dark="#ece7e1",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_hover_dark="*primary_700",
        button_primary_text_color="white",
        button_secondary_background_fill="#f0ece7",
        button_secondary_background_fill_dark="#332d29",
        button_secondary_background_fill_hover="#e6e0d9",
        button_secondary_background_fill_hover_dark="#403833",
        button_cancel_background_fill="#b3261e",
        button_cancel_background_fill_dark="#a3352d",
        button_cancel_background_fill_hover="#8f1d17",
        button_cancel_background_fill_hover_dark="#bb4239",
        button_cancel_text_color="white",
        button_cancel_text_color_dark="white",
        checkbox_label_background_fill="transparent",
        checkbox_label_background_fill_dark="transparent",
    )


def head_html() -> str:
    """The page's own style and script. As a <style> of the head, since Gradio's `css` rewrites every selector."""
    folder = Path(__file__).parent
    files = ("style.css", "compare.css", "head.html", "live.js")
    style, compare, head, live = ((folder / name).read_text(encoding="utf-8") for name in files)
    return f"<style>{style}{compare}</style>{head}<script>{live}</script>"
