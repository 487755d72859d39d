"""Calibrations, as they are asked for."""

from sqlmodel import Session

from studio.protocols.run_dir import JobSpec
from studio.services.estimates import measurements
from studio.services.models import models
from studio.settings import Settings
from tests.support.factories import make_recipe


def test_calibration_job_includes_approved_code_hash(db: Session, settings: Settings) -> None:
    model = models.find_by_name(db, "starter")
    assert model is not None
    model.consent = {"sha256": "c0de"}
    chore = measurements.enqueue_calibration(db, make_recipe(), settings)

    assert JobSpec.model_validate_json(chore.params["job"]).code == "c0de"
