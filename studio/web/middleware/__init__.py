"""ASGI middleware: authentication, request checks, request metrics, proxy headers."""
