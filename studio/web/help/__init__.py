"""Help pages: settings, error codes, the API reference, the style guide."""
