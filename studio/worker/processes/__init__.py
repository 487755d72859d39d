"""Processes of runs and tasks: launched, limited, found again, ended."""
