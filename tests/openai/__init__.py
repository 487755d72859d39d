"""OpenAI's own clients, the oldest and the newest, against a studio that lives."""
