"""Precision studies: runs of one recipe in several precisions and seeds, and their statistics."""
