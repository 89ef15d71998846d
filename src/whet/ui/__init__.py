"""Show figures, below all commands: numbers, charts, the style of pages, and the servers that show them."""
