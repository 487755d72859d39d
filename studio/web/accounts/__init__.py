"""The pages to sign in, and to manage accounts, tokens and sessions."""
