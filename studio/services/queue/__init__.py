"""The queue: order, slots, why something waits, and what a finished task triggers."""
