"""How pages are rendered: templates, navigation, live figures, static files."""
