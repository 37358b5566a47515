"""What several kernel families share: device functions, arithmetic of tiles and buffers, formats."""
