"""What is claimed of figures and of the time they take."""
