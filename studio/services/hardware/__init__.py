"""The load of the machines that train."""
