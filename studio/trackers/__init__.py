"""Trackers: where a run's metrics are sent besides the studio, and how each is written.

Only a process of its own imports a tracker's package: see `studio.runner.tasks.track`.
"""
