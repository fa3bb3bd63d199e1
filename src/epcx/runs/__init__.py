"""Storage: run folders, weights and metrics. It knows arrays and files, not what they mean."""
