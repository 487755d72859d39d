"""The inference service: loaded models that answer token by token."""
