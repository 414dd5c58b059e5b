"""Tasks of the package `verifiers` as a black-box agent."""
