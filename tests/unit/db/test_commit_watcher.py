"""Who watches a database hears of every commit once, and of nothing else."""

from sqlalchemy import Engine

from studio.db.session import unit_of_work, watch_commits
from studio.db.tables import Worker


def test_new_commit_is_reported_once(engine: Engine) -> None:
    with watch_commits(engine) as changes:
        heard = [changes.has_new_commit(), changes.has_new_commit()]
        with unit_of_work(engine) as db:
            db.add(Worker(name="w", pid=1, slots=1))
        heard += [changes.has_new_commit(), changes.has_new_commit()]

    assert heard == [True, False, True, False]


def test_reads_are_not_reported_as_commits(engine: Engine) -> None:
    with watch_commits(engine) as changes:
        changes.has_new_commit()
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM run").all()

        assert not changes.has_new_commit()
