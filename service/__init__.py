"""Studies: spec -> plan -> queue -> Ray job -> store -> analysis. Knows no HTTP server."""
