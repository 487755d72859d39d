"""REST routes of datasets: uploads, versions, mapping, statistics, data quality."""
