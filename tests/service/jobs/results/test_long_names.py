"""Models whose base has the longest name that the catalogue allows."""

from fastapi.testclient import TestClient

from service.jobs.model import names
from service.platform.db import Database
from service.settings import Settings
from tests.service.job_samples import create, make_model, upload
from tests.service.jobs.results.conftest import add_tuned

LONG = "organisation/" + "m" * 187


def test_a_model_of_a_long_base_is_exported_and_trained_further(
    client: TestClient, settings: Settings, database: Database
) -> None:
    make_model(settings.home, LONG)
    job_id = add_tuned(settings, database, model=LONG, suffix="s" * 64)
    job = client.get(f"/v1/fine_tuning/jobs/{job_id}").json()
    tuned = job["fine_tuned_model"]
    assert names.base_of(tuned) == LONG
    assert len(tuned) > 256
    exported = client.post(f"/v1/fine_tuning/jobs/{job_id}/exports", json={"format": "merged"})
    assert exported.status_code == 201, exported.text
    assert create(client, upload(client), model=tuned)["model"] == tuned
    found = client.get("/v1/fine_tuning/jobs", params={"model": tuned}).json()["data"]
    assert [each["model"] for each in found] == [tuned]
