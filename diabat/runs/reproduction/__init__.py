"""Published tables beside our own runs: their form in YAML, gaps between arms, decay with the window, figures."""
