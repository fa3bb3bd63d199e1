"""Where matches train."""
