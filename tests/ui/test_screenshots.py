"""What needs no browser; tests/e2e/test_browser.py takes all pictures of a real run."""

from __future__ import annotations

import pytest

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.screenshots import newest_job


def test_the_newest_job_is_one_that_succeeded(api: StillhouseClient, seeded: SeededService) -> None:
    found = api.job(newest_job(api))
    succeeded = api.jobs(status="succeeded").data
    assert found.status == "succeeded"
    assert found.created_at == max(job.created_at for job in succeeded)


def test_without_a_service_the_cure_is_said(nobody: StillhouseClient) -> None:
    with pytest.raises(SystemExit, match=r"does not answer.*make up"):
        newest_job(nobody)
