"""What the workflow asks while it is parsed: which jobs there are, and what each depends on."""
