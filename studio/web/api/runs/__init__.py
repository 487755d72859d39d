"""REST routes of runs: submission, results, streams, exports, estimates, the queue."""
