"""Files that somebody else wrote, read with suspicion: the config, JSON documents, patterns of device names."""
