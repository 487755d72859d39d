"""Reports to share: a run or a comparison as one HTML file."""
