"""Workers: heartbeats, hardware, the worker process, the prefork server, matmul speeds."""
