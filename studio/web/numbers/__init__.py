"""The page that shows what each number format stores of a number."""
