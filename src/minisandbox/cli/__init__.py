"""The ``minisandbox`` command. The only place that prints and exits."""
