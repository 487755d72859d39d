"""Visitors of a studio that does not let everybody in."""

from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.accounts import LinkPurpose, Role, Scope
from studio.db.session import unit_of_work
from studio.services.accounts import accounts, api_tokens, login_sessions
from studio.settings import Settings
from studio.web.app import create_app

PASSWORD = "a few words in a row"  # noqa: S105 -- of nobody


@dataclass(frozen=True, slots=True)
class Visitors:
    """A studio with a door, and its keys."""

    app: FastAPI
    engine: Engine
    settings: Settings

    def stranger(self) -> TestClient:
        return TestClient(self.app, follow_redirects=False)

    def link(self) -> str:
        with unit_of_work(self.engine) as db:
            return f"/login?t={login_sessions.issue_link(db, LinkPurpose.ENTER)}"

    def owner(self) -> TestClient:
        """Return the browser of who came in by the link."""
        browser = self.stranger()
        assert browser.get(self.link()).status_code == 303
        return browser

    def account(self, name: str, role: Role) -> int:
        with unit_of_work(self.engine) as db:
            found = accounts.find(db, name) or accounts.add(db, name, role)
            assert found.id is not None
            return found.id

    def person(self, name: str, role: Role) -> TestClient:
        """Return the browser of somebody who has signed in."""
        number = self.account(name, role)
        browser = self.stranger()
        with unit_of_work(self.engine) as db:
            secret = login_sessions.begin(db, number)
        browser.cookies.set("studio_80", secret)
        return browser

    def program(self, scope: Scope, name: str = "") -> TestClient:
        """Return a program that shows a token."""
        whose = self.account(name, Role.ADMINISTRATOR) if name else None
        with unit_of_work(self.engine) as db:
            _token, secret = api_tokens.create(db, api_tokens.TokenRequest("test", scope, 1), whose)
        headers = {"Authorization": f"Bearer {secret}"}
        return TestClient(self.app, follow_redirects=False, headers=headers)


def make_visitors(engine: Engine, settings: Settings, sign_in: str) -> Visitors:
    closed = settings.model_copy(update={"sign_in": sign_in})
    return Visitors(create_app(engine, closed), engine, closed)
