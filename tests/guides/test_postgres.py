"""The how-to on PostgreSQL, on a server of its own."""

from pathlib import Path

import pytest

from tests.guides.reader import Reader, blocks
from tests.support.live_studio import Studio, free_port
from tests.support.postgres_server import Server

pytestmark = pytest.mark.slow

USER = "studio_user"
"""In place of `studio`, as the tests' own user is called."""


def test_use_postgres(postgres: Server, tmp_path: Path) -> None:
    create, serve, backup, restore = blocks("use-postgres")
    for statement in create.strip().strip(";").split(";"):
        postgres.execute(
            statement.replace("USER studio", f"USER {USER}").replace(
                "OWNER studio", f"OWNER {USER}"
            )
        )
    studio = Studio(tmp_path / "home", free_port())
    reader = Reader(studio, tmp_path)
    export, command = serve.strip().splitlines()
    known = export.replace("studio:", f"{USER}:").replace(
        "db.example.org/studio", f"/studio?host={postgres.folder}"
    )
    ask = f"until curl --silent --fail {studio.url}/api/v1/health; do sleep 0.1; done"
    serving = f"{known}; {command} --port {studio.port} & trap 'kill $!; wait' EXIT; {ask}"
    assert "ok" in reader.shell(serving)

    version = "SELECT version_num FROM alembic_version"
    before = postgres.execute(version, "studio")
    reader.shell(f"{known}; {backup}")
    postgres.execute("DROP TABLE alembic_version", "studio")
    reader.shell(f"{known}; {restore}")
    assert postgres.execute(version, "studio") == before
    assert (tmp_path / "studio-home" / "home_id").exists()
    assert "ok" in reader.shell(serving)
