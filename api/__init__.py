"""Everything that faces a person or a program: HTTP routes, Python client, command line."""
