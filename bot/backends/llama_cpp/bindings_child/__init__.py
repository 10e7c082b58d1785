"""A local model by way of the bindings `llama_cpp`, in a process of its own.

__main__.py   start    load the model, answer until told to end
serving.py    answer   the few paths of llama.cpp's server that we use, on a unix socket
asking.py     read     a request: token ids, limits, everything that shapes the choice of tokens
batching.py   decode   a step at a time, every answer under way has a share of the same batch
slots.py               ... and what it decides by: who goes on where, who gets how much
wording.py    write    tokens become text, whole characters only, until something ends it
native.py              llama.cpp itself, behind the protocols of slots.py
sampling.py            ... and its chain of samplers
"""
