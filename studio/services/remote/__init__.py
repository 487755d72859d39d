"""Workers on other machines: what they get, and what they send."""
