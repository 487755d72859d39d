"""REST routes of accounts, tokens and secrets."""
