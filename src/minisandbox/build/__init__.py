"""The pipeline: one module per stage.

Stages never import each other; they meet in records on disk.
"""
