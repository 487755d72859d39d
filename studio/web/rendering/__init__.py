"""Page rendering: templates, navigation, live figures, static files."""
