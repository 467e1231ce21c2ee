"""How large a body may be; the command line knows it too, and does not send what would be refused."""

MAX_BODY_BYTES = 1_000_000
MAX_CSV_BYTES = 4_000_000  # of measured rows: some 40,000 of them
