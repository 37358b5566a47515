"""What runs on a GPU alone: the clock, the board, graphs, memory, recordings, workers that lose their device."""
