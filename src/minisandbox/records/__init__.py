"""Records: the small JSON files through which the stages of the pipeline, and the runtime, meet on
disk.
"""
