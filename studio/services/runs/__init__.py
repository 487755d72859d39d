"""Runs: submission, attempts, commands, failure reports, tags and the trash."""
