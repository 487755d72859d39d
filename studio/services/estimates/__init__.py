"""Memory and time estimates before a run, the data behind them, and progress during a run."""
