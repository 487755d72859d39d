"""The tokenizer service: previews tokens and chat templates in sandboxed children."""
