"""Pages of datasets: list, import, mapping, rows, statistics, token preview."""
