"""Rows to tokens: chat templates, labels, packing, and previews of all of it."""
