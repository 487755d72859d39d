"""What web, worker and runner exchange.

Run folders, events, tasks, and the two Unix socket services.
"""
