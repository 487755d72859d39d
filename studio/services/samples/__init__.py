"""Sample answers of runs: compared word by word, and rated."""
