"""The how-to on workers on other machines, with a second home in place of a second machine."""

from pathlib import Path

import pytest

from studio.db.accounts import Role, Scope
from studio.db.session import unit_of_work
from studio.methods import RECIPE_ADAPTER
from studio.services import experiments
from studio.services.accounts import accounts, api_tokens
from studio.services.operations import home
from studio.services.runs import runs
from studio.settings import Settings
from tests.guides.reader import Reader, blocks
from tests.support.live_studio import QUICK, Studio

pytestmark = pytest.mark.slow


def test_train_on_another_machine(starter_home: Path, tmp_path: Path) -> None:
    studio = Studio.copied(starter_home, tmp_path / "home")
    token = prepare(Settings(home=studio.home))
    serve, worker = blocks("workers-elsewhere")
    serve = serve.replace("studio.example.org", "127.0.0.1").replace("192.0.2.1", "127.0.0.1")
    worker = worker.replace("sft_12_...", token)
    worker = worker.replace("http://studio.example.org:8000", studio.url)
    run = f"curl --silent --header 'Authorization: Bearer {token}' {studio.url}/api/v1/runs/1"
    script = f"""
{serve.strip()} --port {studio.port} --no-worker & first=$!
export STUDIO_HOME={tmp_path / "elsewhere"}
{worker.strip()} & second=$!
trap 'kill $first $second; wait' EXIT
until {run} | grep --quiet '"finished_at":"'; do sleep 0.2; done
{run}
"""

    assert '"status":"succeeded"' in Reader(studio, tmp_path).shell(script)


def prepare(settings: Settings) -> str:
    """Add an administrator and a short run. Return the administrator's token."""
    engine = home.open_home(settings)
    recipe = RECIPE_ADAPTER.validate_python(QUICK | {"optimisation": {"max_steps": 2}})
    with unit_of_work(engine) as db:
        admin = accounts.add(db, "admin", Role.ADMINISTRATOR)
        request = api_tokens.TokenRequest("worker", Scope.ADMIN, 1)
        _row, token = api_tokens.create(db, request, admin.id)
        runs.submit(db, experiments.create(db, "quick", recipe))
    engine.dispose()
    return token
