"""Playing for measurement: scripted players, cross-play, scores and statistics."""
