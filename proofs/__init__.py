"""What the project claims of itself and proves apart from the product, which imports nothing of this."""
