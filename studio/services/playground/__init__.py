"""Ask several models side by side."""
