"""The inference service: loads models and streams their answers token by token."""
