"""Page languages: locale selection, translation, and formatting of numbers and dates."""
