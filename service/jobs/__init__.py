"""Fine-tuning jobs, from the request to the result.

`model/` names and shapes · `store/` rows and the queue · `intake/` from a request to a queued job ·
`progress/` what comes back while it runs · `results/` what is left at its end ·
`diagnosis/` why it went wrong · `api/` its endpoints.
"""
