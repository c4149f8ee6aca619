"""The official graders: pinned tools in environments of their own, behind the project's Protocol.

They cannot be dependencies of the project: two of them are versions of one distribution, and each
brings hundreds of megabytes. What is theirs (specifications, scripts, parsers, verdicts) is used as
it is; what runs is a script of ours inside their environment, asked and answering in JSON.
"""
