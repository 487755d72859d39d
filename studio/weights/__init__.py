"""Read facts about a model from its files, in milliseconds, without torch or loading weights."""
