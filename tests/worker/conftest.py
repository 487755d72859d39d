"""A home for each test, on SQLite or PostgreSQL."""

from tests.support import template_homes

furnished = template_homes.furnished
postgres = template_homes.postgres
settings = template_homes.settings
