"""A model behind HTTP: `hf-bert serve`.

`server.py` starts all of it. `app.py` receives requests, `routes.py` has the paths of each task,
`admission.py` limits and counts them, and `model_worker.py` computes them.
"""
