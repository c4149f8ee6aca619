"""What people wrote down: configuration, datasets, recipes, specifications, exports."""
