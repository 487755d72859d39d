"""The studio's own first material: words, prose and instruction rows, made from templates."""
