"""Running and grading the tests of an instance: logs to statuses, statuses to a verdict."""
