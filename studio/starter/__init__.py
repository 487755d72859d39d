"""The included sample data: vocabulary, prose and instruction rows, generated from templates."""
