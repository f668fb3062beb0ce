"""What is logged, for people or as JSON: what each line is about, and without what a terminal would obey."""
