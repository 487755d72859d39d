"""Pages that compare runs: curves, settings, sample answers, exports."""
