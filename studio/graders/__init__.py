"""Graders: what scores one answer to one row, as data in OpenAI's grader JSON."""
