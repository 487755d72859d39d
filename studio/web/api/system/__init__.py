"""REST routes of the studio itself: health, tasks, notifications, metrics."""
