"""Kombu's filesystem transport, with messages that appear whole.

Knows one flaw of kombu 5.7: it creates a message under its final name and writes it afterwards, so a consumer that
looks in between takes an empty file, and its worker dies of a JSON error. Everything else is kombu's own.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    def _put(self, queue: str, payload: Any, **_: Any) -> None:
        """Writes under a name that no consumer looks for, then renames; names sort by time, as kombu's do."""
        partial = os.path.join(self.data_folder_out, f"{uuid.uuid4().hex}.partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.write(dumps(payload))
        name = f"{time.time_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        os.rename(partial, os.path.join(self.data_folder_out, name))


class Transport(filesystem.Transport):
    Channel = Channel
