"""Write the next migration: how the tables of today differ from what the migrations build.

`make db NAME="add tags to runs"` runs it. Read what it wrote: a renamed column looks to it like one
dropped and one added.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from alembic import command

from studio.db import migrate
from studio.db.session import open_engine


def write(name: str, home: Path) -> None:
    engine = open_engine(home / "studio.db")
    migrate.upgrade(engine)
    configuration = migrate.alembic_config()
    number = f"{len(migrate.known_versions()) + 1:04}"
    with engine.begin() as connection:
        configuration.attributes["connection"] = connection
        command.revision(configuration, name, autogenerate=True, rev_id=number)
    engine.dispose()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        write(sys.argv[1], Path(folder))
