"""The queue: order, slots, wait reasons, and what happens when a task ends."""
