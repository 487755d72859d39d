"""Accounts: sessions, passwords, API tokens, OpenID Connect, owners, secrets, audit log."""
