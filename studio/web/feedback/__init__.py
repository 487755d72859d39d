"""What people said about answers, and the datasets made of it."""
