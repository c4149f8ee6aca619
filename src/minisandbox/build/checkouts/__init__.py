"""Repositories at one commit, of git or of releases, with no more history than is wanted."""
