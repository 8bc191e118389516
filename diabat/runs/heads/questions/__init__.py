"""Questions for games on heads: from files, templates and data sets."""
