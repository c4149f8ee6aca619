"""What the validate stage makes of its runs: verdicts over several, why tests fail, other dates."""
