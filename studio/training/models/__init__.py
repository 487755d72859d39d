"""Models, tokenizers and weights: loading them in the formats a run asks for."""
