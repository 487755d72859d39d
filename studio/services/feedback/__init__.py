"""What people say about answers, collected as rows to train on."""
