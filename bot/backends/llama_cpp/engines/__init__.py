"""The engines that run local models, each in a child process, behind one protocol."""
