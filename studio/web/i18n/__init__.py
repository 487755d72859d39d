"""The language of a page: locales, translation, and how numbers and dates are formatted."""
