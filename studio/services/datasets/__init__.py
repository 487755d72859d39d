"""Datasets: imports, uploads, versions, data quality, token statistics and previews."""
