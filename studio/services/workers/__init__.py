"""Workers: heartbeats, hardware, the worker process, the prefork launcher, matmul speeds."""
