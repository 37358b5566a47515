"""Result documents and what follows from them: read, found, recorded, compared, judged."""
