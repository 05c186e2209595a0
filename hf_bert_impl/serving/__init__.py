"""A model behind HTTP: `hf-bert serve`.

`server.py` starts all of it. `app.py` receives requests, `routes.py` has the paths of each task,
`admission.py` limits and counts them, `model_worker.py` passes them to the model, and `tasks.py`
has a class for each task.
"""
