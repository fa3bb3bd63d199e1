"""Playing for measurement: scripted players, and later scores and cross-play."""
