"""Answer for `whet doctor`: what is installed, what works, and what is missing for which command."""
