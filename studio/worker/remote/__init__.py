"""A worker for a studio on another machine: it claims runs over HTTP and sends what they write."""
