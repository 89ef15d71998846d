"""Stream between a model and a page in a browser: whet stream --page."""
