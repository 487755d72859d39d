"""Where datasets are fetched from: a URL, the Hugging Face hub, S3."""
