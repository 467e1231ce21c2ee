"""What is concluded from rows. Pure: rows in, findings out; the same for measured and imported rows."""
