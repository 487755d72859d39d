"""Who sends a request, and what they may do: identities, permissions, the route table."""
