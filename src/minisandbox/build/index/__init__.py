"""The package index of builds: what they reach of it, take from it, and can be given again."""
