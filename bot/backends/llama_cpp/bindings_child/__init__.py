"""The engine `llama_cpp_python`: a child process that runs a model with the bindings `llama_cpp`.

__main__.py            start    load the model and serve until terminated
server.py              serve    the routes of llama.cpp's server that Troupe uses, on a unix socket
completion_request.py  parse    a request: token ids, limits and sampling parameters
batching.py            decode   one step at a time, with a share of the batch for each generation
slots.py                        ... and the values and decisions of it: slot choice, batch shares
detokenizer.py         write    turn tokens into text, whole characters only, until a stop
native.py                       llama.cpp itself, behind the protocols of slots.py
sampling.py                     ... and its chain of samplers
"""
