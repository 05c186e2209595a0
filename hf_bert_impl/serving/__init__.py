"""A model behind HTTP: `hf-bert serve`.

`app.py` is what clients see, `model_worker.py` computes, `server.py` joins both by Ray Serve.
"""
