"""What people see, below all commands: numbers, charts, styles of pages, and the servers that show them."""
