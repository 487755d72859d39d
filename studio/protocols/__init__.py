"""What web, worker and runner exchange: run folders, events, tasks and two socket services."""
