"""The command line: a client of the HTTP interface, and what runs a server on this machine."""
