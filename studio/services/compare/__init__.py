"""Compare runs: recipe differences, common metrics, seed noise, saved comparisons."""
