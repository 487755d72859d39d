"""Pages to sign in, and to manage accounts, tokens and sessions."""
