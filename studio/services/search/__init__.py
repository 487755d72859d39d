"""Search: the query language, the run table with its groups and saved views, and the search box."""
