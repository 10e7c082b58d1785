"""The engine `llama_cpp_python`: a child process that runs a model with the bindings' `Llama`.

__main__.py            start     load the model and serve until terminated
server.py              serve     the routes of llama.cpp's server that Troupe uses, on a unix socket
completion_request.py  parse     token ids, limits and sampling parameters
served_model.py        generate  one request at a time; save and restore the KV state
detokenizer.py         write     turn tokens into text, whole characters only, until a stop
"""
