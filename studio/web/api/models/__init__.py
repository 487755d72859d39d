"""REST routes of base models, training methods and precisions."""
