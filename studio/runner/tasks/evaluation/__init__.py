"""How rows are answered by models that read a text and write none."""
