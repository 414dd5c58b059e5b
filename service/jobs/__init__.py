"""Fine-tuning jobs, from the request to the result.

`model/` names and shapes · `store/` rows and the queue · `intake/` from a request to a queued job ·
`progress/` events and metrics of the run · `results/` files and weights ·
`diagnosis/` why it went wrong · `api/` its endpoints.
"""
