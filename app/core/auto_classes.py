"""transformers, imported on first use, by one thread at a time.

Knows that importing it takes seconds (where torch is installed too, it is loaded), and that a thread that asks for its
classes while another one still imports it gets an ImportError: the module replaces itself at the end of its import.
"""

from __future__ import annotations

import threading
from typing import Any

_ONE_AT_A_TIME = threading.Lock()


def auto_classes() -> tuple[Any, Any]:
    """`AutoConfig` and `AutoTokenizer`."""
    with _ONE_AT_A_TIME:
        from transformers import AutoConfig, AutoTokenizer
    return AutoConfig, AutoTokenizer
