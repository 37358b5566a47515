"""What several kernel families share; no kernel of its own."""
