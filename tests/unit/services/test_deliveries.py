"""The outbox: what is written into it, and when it is tried again."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.outbox import Channel, Delivery, DeliveryAttempt, DeliveryStatus
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Run
from studio.protocols.events import Failed, Paused
from studio.services.notifications import deliveries
from studio.services.notifications.deliveries import ANSWER_TIMEOUT, RETRY_DELAYS, DeliveryResult
from studio.services.runs import attempts, run_commands, runs, states
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_run, make_running

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FAILED = DeliveryResult(is_ok=False, words="The server responded with 500.")
TAKEN = DeliveryResult(is_ok=True, words="The server responded with 204.")


def written(db: Session, channel: Channel = Channel.WEBHOOK) -> list[Delivery]:
    query = select(Delivery).where(Delivery.channel == channel).order_by("id")
    return list(db.exec(query))


def events(db: Session) -> list[str]:
    return [one.event for one in written(db)]


def a_test(db: Session, now: datetime = NOW) -> Delivery:
    """Write a message that is tried for as long as one of a run is."""
    made = deliveries.enqueue_test(db, Channel.WEBHOOK)
    made.event, made.due_at = "run.failed", now
    db.flush()
    return made


def tried(db: Session, delivery: Delivery, answer: DeliveryResult, now: datetime) -> Delivery:
    taken = deliveries.begin_attempt(db, delivery.id or 0, now)
    assert taken is not None
    return deliveries.record_result(db, taken[1], answer, now)


def test_successful_run_creates_event_for_each_channel(db: Session) -> None:
    run = make_finished_run(db)

    told = [(one.channel, one.event, one.run_id) for one in deliveries.newest(db, limit=9)]
    assert told == [("email", "run.succeeded", run.id), ("webhook", "run.succeeded", run.id)]


def test_failed_run_event_includes_reason(db: Session) -> None:
    run = make_running(db)
    attempts.fail(db, run, Failed(code="killed", message="It was killed.", hint="Try again."))

    assert written(db)[0].data == {
        "id": run.id,
        "name": "first try",
        "status": "failed",
        "attempt": 0,
        "step": 0,
        "total_steps": 10,
        "metrics": {},
        "error": {
            "code": "killed",
            "message": "It was killed.",
            "hint": "Try again.",
            "phase": "starting",
        },
    }


def test_event_contains_run_state_at_its_time(db: Session) -> None:
    run = make_running(db)
    run.checkpoint_step = 3
    attempts.fail(db, run, Failed(code="killed", message="It was killed."))
    run_commands.retry(db, run.id or 0)
    run.name = "another"

    assert (written(db)[0].data["name"], written(db)[0].data["status"]) == ("first try", "failed")


def test_nan_metric_is_sent_as_string(db: Session) -> None:
    run = make_running(db)
    run.metrics = {"loss": float("nan")}
    states.move(db, run, RunStatus.SUCCEEDED)

    assert written(db)[0].data["metrics"] == {"loss": "NaN"}


def test_cancelled_run_creates_event(db: Session) -> None:
    run_commands.cancel(db, make_run(db).id or 0)

    assert events(db) == ["run.cancelled"]


def test_unrequested_pause_creates_event(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [Paused(step=3)], 10)

    assert (run.status, events(db)) == (RunStatus.PAUSED, ["run.paused"])


def test_requested_pause_creates_no_event(db: Session) -> None:
    run = make_running(db)
    run_commands.pause(db, run.id or 0)
    assert run.asked is RunCommand.PAUSE
    attempts.apply_events(db, run, [Paused(step=3)], 10)

    assert (run.status, events(db)) == (RunStatus.PAUSED, [])


def test_rolled_back_change_creates_no_event(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
        db.rollback()

    with read_session(engine) as db:
        assert (db.exec(select(Run)).all(), written(db)) == ([], [])


def test_failed_delivery_is_retried_for_about_one_day(db: Session) -> None:
    delivery, now, count = a_test(db), NOW, 0
    while delivery.status == DeliveryStatus.WAITING:
        now = delivery.due_at
        delivery = tried(db, delivery, FAILED, now)
        count += 1

    assert (count, delivery.status) == (len(RETRY_DELAYS) + 1, DeliveryStatus.GIVEN_UP)
    assert timedelta(hours=23) < now - NOW < timedelta(hours=25)
    assert [one.words for one in deliveries.list_attempts(db, [delivery])[delivery.id or 0]] == [
        "The server responded with 500."
    ] * count


def test_retry_delays_never_decrease() -> None:
    assert sorted(RETRY_DELAYS) == list(RETRY_DELAYS)


def test_delivery_is_not_due_before_its_time(db: Session) -> None:
    delivery = tried(db, a_test(db), FAILED, NOW)

    before = delivery.due_at - timedelta(seconds=1)
    assert (deliveries.next_due(db, before), deliveries.next_due(db, delivery.due_at)) == (
        None,
        delivery.id,
    )


def test_successful_delivery_is_not_sent_again(db: Session) -> None:
    delivery = tried(db, a_test(db), TAKEN, NOW)

    assert delivery.status == DeliveryStatus.DELIVERED
    assert deliveries.next_due(db, NOW + timedelta(days=9)) is None
    assert deliveries.begin_attempt(db, delivery.id or 0, NOW + timedelta(days=9)) is None


def test_two_workers_never_attempt_same_delivery(db: Session) -> None:
    delivery = a_test(db)
    first = deliveries.begin_attempt(db, delivery.id or 0, NOW)

    assert first is not None
    assert deliveries.begin_attempt(db, delivery.id or 0, NOW) is None


def test_unanswered_delivery_is_retried_with_same_key(db: Session) -> None:
    delivery = a_test(db)
    deliveries.begin_attempt(db, delivery.id or 0, NOW)
    again = deliveries.begin_attempt(db, delivery.id or 0, NOW + ANSWER_TIMEOUT)

    assert again is not None
    made = deliveries.list_attempts(db, [delivery])[delivery.id or 0]
    assert (again[0].key, [(one.number, one.ended_at) for one in made]) == (
        delivery.key,
        [(1, None), (2, None)],
    )


def test_delivery_stops_after_410_gone(db: Session) -> None:
    gone = DeliveryResult(is_ok=False, words="The server responded with 410 Gone.", is_final=True)

    assert tried(db, a_test(db), gone, NOW).status == DeliveryStatus.GIVEN_UP


def test_failed_test_message_is_not_retried(db: Session) -> None:
    delivery = deliveries.enqueue_test(db, Channel.EMAIL)
    delivery.due_at = NOW
    db.flush()

    assert tried(db, delivery, FAILED, NOW).status == DeliveryStatus.GIVEN_UP


def test_deliveries_of_disabled_channels_are_dropped(db: Session) -> None:
    make_finished_run(db)
    deliveries.drop_disabled_channels(db, [Channel.EMAIL])

    assert [one.channel for one in deliveries.newest(db, limit=9)] == ["email"]


def test_event_of_deleted_run_is_kept(db: Session, settings: Settings) -> None:
    run = make_finished_run(db)
    runs.delete(db, run.id or 0, settings.runs)
    db.flush()
    db.expire_all()

    assert [(one.run_id, one.data["name"]) for one in written(db)] == [(None, "first try")]


def test_old_deliveries_are_deleted_with_their_attempts(db: Session) -> None:
    delivery = tried(db, a_test(db), TAKEN, NOW)
    delivery.created_at = datetime.now(UTC) - deliveries.RETENTION
    db.flush()
    make_finished_run(db)

    assert events(db) == ["run.succeeded"]
    assert db.exec(select(DeliveryAttempt)).all() == []
