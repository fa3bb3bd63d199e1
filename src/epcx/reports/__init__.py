"""Tables, figures, replays and the HTML report: reads runs, never trains."""
