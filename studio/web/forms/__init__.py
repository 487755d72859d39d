"""Forms from recipe sections: controls, parsing, and the options of select fields."""
