"""The handlers of chat commands: what /preset, /new, /me, /context and /forget do."""
