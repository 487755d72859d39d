"""Pages on which graders are built and tried."""
