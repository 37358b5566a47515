"""What kernel families share: tiles of rows and of products, what programs tell each other, packed weights, checks."""
