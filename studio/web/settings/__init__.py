"""The pages of settings and secrets, and the choice of language."""
